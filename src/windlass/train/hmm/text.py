"""The sequences to learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.batches import sample_count
from windlass.corpus.corpus_dir import BuiltCorpus

Tokens = NDArray[np.int64]
Read = Callable[[Tokens], Tokens]
"""Sequences by number to their tokens, one row each."""


@dataclass(frozen=True)
class HmmText:
    """`count` sequences, each of `length` tokens."""

    read: Read
    count: int
    length: int

    @property
    def tokens(self) -> int:
        return self.count * self.length


def text_of(tokens_NT: Tokens) -> HmmText:
    """Return sequences that are in memory."""
    return HmmText(lambda numbers: tokens_NT[numbers], *tokens_NT.shape)


def text_of_corpus(corpus: BuiltCorpus, context: int) -> HmmText:
    """Cut the training part into sequences; every token is in one of them but for the last few."""
    part = corpus.train

    def read(numbers: Tokens) -> Tokens:
        rows = np.empty((len(numbers), context), np.int64)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            row[:] = part.read(number * context, (number + 1) * context)
        return rows

    return HmmText(read, sample_count(len(part), context), context)
