"""Reads an n-gram model in numpy: like native/ngram.cpp, but for many sequences at a time.

A context is an order and a node of that order; order 0 is the empty context. Sums are made in the same
order as there, so the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.trie import Level, Logs

LN10 = np.float32(2.302585092994046)

Ints = NDArray[np.int64]
Ids = NDArray[np.integer[Any]]


def find(begins: NDArray[Any], words: NDArray[Any], nodes: NDArray[Any], wanted: NDArray[Any]) -> Ints:
    """Return the child of each node whose last word is the wanted one, or -1."""
    nodes = nodes.astype(np.int64)
    low, end = begins[nodes].astype(np.int64), begins[nodes + 1].astype(np.int64)
    high = end.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = open_ & (words[np.minimum(middle, len(words) - 1)] < wanted)
        high = np.where(open_ & ~less, middle, high)
        low = np.where(less, middle + 1, low)
    there = low < end
    there[there] = words[low[there]] == wanted[there]
    return np.where(there, low, -1)


class Walk:
    """Sequences that are read in lockstep, each from the empty context."""

    def __init__(self, levels: Sequence[Level], end: int, rows: int) -> None:
        self._levels, self._end = levels, end
        self.orders = np.zeros(rows, np.int64)
        self.nodes = np.zeros(rows, np.int64)

    def copy(self) -> Walk:
        other = Walk(self._levels, self._end, 0)
        other.orders, other.nodes = self.orders.copy(), self.nodes.copy()
        return other

    def read(self, words: Ids, rows: NDArray[np.bool_] | None = None) -> Logs:
        """Read a word of each sequence, or of some `rows`; return its log10 probability, else 0."""
        found = np.zeros(len(words), np.float32)
        left = np.ones(len(words), bool) if rows is None else rows.copy()
        for order in range(len(self._levels) - 1, 0, -1):
            here = np.flatnonzero(left & (self.orders == order))
            if not len(here):
                continue
            level, above = self._levels[order - 1], self._levels[order]
            assert level.begins is not None
            assert level.backoffs is not None
            assert above.words is not None
            children = find(level.begins, above.words, self.nodes[here], words[here])
            hit, miss = here[children >= 0], here[children < 0]
            nodes = children[children >= 0]
            found[hit] += above.probabilities[nodes]
            self.orders[hit], self.nodes[hit] = order + 1, nodes
            left[hit] = False
            found[miss] += level.backoffs[self.nodes[miss]]
            self._shorten(miss)
        rest = np.flatnonzero(left)
        found[rest] += self._levels[0].probabilities[words[rest]]
        self.orders[rest], self.nodes[rest] = 1, words[rest]
        self._shorten(np.flatnonzero(self.orders == len(self._levels)))
        # The end of a document is all that its beginning knows.
        ended = (words == self._end) & (self.orders > 0) & (True if rows is None else rows)
        self.orders[ended], self.nodes[ended] = 1, self._end
        return found

    def spread(self) -> Logs:
        """Return the natural logarithms of the probabilities of all next words, one row a sequence."""
        first = self._levels[0].probabilities
        out = np.empty((len(self.orders), len(first)), np.float32)
        for row in range(len(self.orders)):
            chain, backed_off = self._chain(row)
            out[row] = (backed_off[-1] + first) * LN10
            for (order, node), sum_ in zip(chain[::-1], backed_off[-2::-1], strict=True):
                begins, above = self._levels[order - 1].begins, self._levels[order]
                assert begins is not None
                assert above.words is not None
                children = slice(int(begins[node]), int(begins[node + 1]))
                out[row, above.words[children]] = (sum_ + above.probabilities[children]) * LN10
        return out

    def _chain(self, row: int) -> tuple[list[tuple[int, int]], list[np.float32]]:
        """Return the context of a row and its suffixes, and the sums of backoffs down to each and to none."""
        order, node = int(self.orders[row]), int(self.nodes[row])
        chain, sums = list[tuple[int, int]](), [np.float32(0)]
        while order:
            level = self._levels[order - 1]
            assert level.backoffs is not None
            chain.append((order, node))
            sums.append(np.float32(sums[-1] + level.backoffs[node]))
            node = 0 if level.suffixes is None else int(level.suffixes[node])
            order -= 1
        return chain, sums

    def _shorten(self, rows: Ints) -> None:
        for order in np.unique(self.orders[rows]).tolist():
            these = rows[self.orders[rows] == order]
            suffixes = self._levels[order - 1].suffixes
            self.nodes[these] = 0 if suffixes is None else suffixes[self.nodes[these]]
        self.orders[rows] -= 1
