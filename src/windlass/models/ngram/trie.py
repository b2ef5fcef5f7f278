"""The data of an n-gram model: a trie of n-grams, one array per kind and order.

A node of order k is an n-gram w1..wk. Its children, the n-grams that continue it, are contiguous in
order k + 1 and sorted by their last word, so a context is followed word by word and its whole
distribution is one slice. Its suffix is the node w2..wk of order k - 1, which is where the model backs
off to. Every prefix and every suffix of a node is a node.

One token, `end`, ends every document and begins the next: as the last word of an n-gram it is </s>, as
the first of several it is <s>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ORDER = 7

Words = NDArray[np.unsignedinteger[Any]]
Nodes = NDArray[np.uint32]
Logs = NDArray[np.float32]
"""log10, as ARPA files have it: they can be written and read again without a change."""


@dataclass(frozen=True)
class Level:
    """The n-grams of one order, sorted by their words from the first on."""

    probabilities: Logs
    words: Words | None = None
    """The last word of each; None for order 1, whose nodes are the ids."""
    suffixes: Nodes | None = None
    """The same without the first word, in the order below; None for order 1."""
    backoffs: Logs | None = None
    """None for the highest order, as are `begins`."""
    begins: Nodes | None = None
    """Where the children of each begin in the next order; one entry more, so that the last one ends too."""

    def __len__(self) -> int:
        return len(self.probabilities)


def word_type(vocabulary: int) -> np.dtype[Any]:
    """Return the narrowest type of the format that holds every id."""
    return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")


def ngrams_of(
    levels: Sequence[Level], order: int, first: int = 0, last: int | None = None
) -> NDArray[np.uint32]:
    """Return the words of the nodes first..last of an order, one row a node."""
    last = len(levels[order - 1]) if last is None else last
    nodes = np.arange(first, last, dtype=np.int64)
    columns = []
    for level, below in zip(levels[order - 1 : 0 : -1], levels[order - 2 :: -1], strict=False):
        assert level.words is not None
        assert below.begins is not None
        columns.append(np.asarray(level.words[nodes], dtype=np.uint32))
        nodes = np.searchsorted(below.begins, nodes, side="right") - 1
    columns.append(nodes.astype(np.uint32))
    return np.stack(columns[::-1], axis=1)
