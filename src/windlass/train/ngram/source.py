"""Sources of the tokens to count: documents, each followed by the end token.

A source is sent to other processes and opened there. Windows are taken from the text with one end token
before it, so that the first document begins as all others do; the last end token begins nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.corpus_dir import load_corpus
from windlass.spec.errors import BadInput

Ids = NDArray[np.integer[Any]]


class TokenSource(Protocol):
    """Tokens in order."""

    @property
    def tokens(self) -> int: ...

    def read(self, start: int, stop: int) -> Ids: ...


@dataclass
class CorpusSource:
    """The training part of a built corpus."""

    path: Path

    def __post_init__(self) -> None:
        self._part = load_corpus(self.path).train

    def __reduce__(self) -> Any:
        return CorpusSource, (self.path,)

    @property
    def tokens(self) -> int:
        return self._part.tokens

    def read(self, start: int, stop: int) -> Ids:
        return self._part.read(start, stop)


@dataclass
class ArraySource:
    """Tokens in memory."""

    array: Ids

    @property
    def tokens(self) -> int:
        return len(self.array)

    def read(self, start: int, stop: int) -> Ids:
        return self.array[start:stop]


def check_source(source: TokenSource, end: int) -> None:
    """Refuse text that does not end with the end token."""
    if not source.tokens or int(source.read(source.tokens - 1, source.tokens)[0]) != end:
        raise BadInput("the text to count must be documents that each end with the end token")


def windows_of(source: TokenSource, start: int, stop: int, order: int, end: int) -> Ids:
    """Return the tokens of the windows start..stop, and the order - 1 that end the last of them."""
    last = min(stop + order - 1, source.tokens + 1)
    tokens = source.read(max(start - 1, 0), last - 1)
    return np.concatenate([np.array([end], tokens.dtype), tokens]) if start == 0 else tokens
