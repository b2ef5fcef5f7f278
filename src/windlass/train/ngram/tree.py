"""Merged windows to the tree of n-grams: words, counts, and where the children of each begin.

Input: sorted windows, in pieces. Output: for each order k the files words-k (u32), counts-k (u64) and,
below the highest, begins-k (u32), as docs/formats/ngram.md has them, but nothing pruned and order 1 only
of tokens that occur.

A node of order k begins where the first k tokens of a window differ from those of the window before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windlass.spec.errors import BadInput
from windlass.store.manifest import DirectoryWriter
from windlass.train.ngram.blocks import Counted, Packing

MAX_NODES = (1 << 32) - 2


def write_tree(writer: DirectoryWriter, stream: Iterable[Counted], packing: Packing) -> tuple[int, ...]:
    """Write the tree; return how many nodes each order has."""
    with ExitStack() as stack:
        orders = [_Order(writer, stack, order, packing.order) for order in range(1, packing.order + 1)]
        last: NDArray[np.uint32] | None = None
        for piece in stream:
            last = _grow(orders, piece, packing, last)
        for order, above in zip(orders, [*orders[1:], None], strict=True):
            order.finish(above)
    return tuple(order.nodes for order in orders)


class _Order:
    """The growing files of one order."""

    def __init__(self, writer: DirectoryWriter, stack: ExitStack, order: int, highest: int) -> None:
        self.nodes = 0
        self._open = np.uint64(0)
        """The count of the newest node, which may still grow."""
        self._words = stack.enter_context(writer.writing(f"words-{order}"))
        self._counts = stack.enter_context(writer.writing(f"counts-{order}"))
        self._begins: IO[bytes] | None = None
        if order < highest:
            self._begins = stack.enter_context(writer.writing(f"begins-{order}"))

    def add(
        self,
        words: NDArray[np.uint32],
        sums: NDArray[np.uint64],
        begins: NDArray[Any] | None,
        before: np.uint64,
    ) -> None:
        """Append nodes with their counts; `before` is added to the count of the newest node so far."""
        self._open += before
        if not len(words):
            return
        if self.nodes:
            sums = np.concatenate([[self._open], sums])
        self._open = sums[-1]
        self._words.write(words.astype("<u4").data)
        self._counts.write(np.ascontiguousarray(sums[:-1], dtype="<u8").data)
        if self._begins is not None and begins is not None:
            self._begins.write(begins.astype("<u4").data)
        self.nodes += len(words)
        if self.nodes > MAX_NODES:
            raise BadInput(
                f"more than {MAX_NODES} n-grams of one order", hint="lower [model.ngram] order, or prune"
            )

    def finish(self, above: _Order | None) -> None:
        if self.nodes:
            self._counts.write(np.array([self._open], "<u8").data)
        if self._begins is not None and above is not None:
            self._begins.write(np.array([above.nodes], "<u4").data)


def _grow(
    orders: list[_Order], piece: Counted, packing: Packing, last: NDArray[np.uint32] | None
) -> NDArray[np.uint32]:
    """Add a piece of the stream to every order; return its last window, to compare the next one with."""
    columns = [packing.column(piece.keys, place) for place in range(packing.order)]
    starts, reached = [], []
    differs, inside = np.zeros(len(piece), bool), np.ones(len(piece), bool)
    differs[0] = last is None
    for place, column in enumerate(columns):
        differs[1:] |= column[1:] != column[:-1]
        if last is not None:
            differs[0] |= column[0] != last[place]
        starts.append(differs & inside)
        reached.append(inside)
        if place:
            inside = inside & (column != packing.end)
    for order, (node, column) in enumerate(zip(orders, columns, strict=True)):
        rows = np.flatnonzero(starts[order])
        begins = None
        if order + 1 < len(orders):
            ahead = np.cumsum(starts[order + 1], dtype=np.int64) - starts[order + 1]
            begins = orders[order + 1].nodes + ahead[rows]
        counts = np.where(reached[order], piece.counts, np.uint64(0))
        first = rows[0] if len(rows) else len(piece)
        sums = np.add.reduceat(counts, rows) if len(rows) else counts[:0]
        node.add(column[rows], sums, begins, counts[:first].sum(dtype=np.uint64))
    return np.array([column[-1] for column in columns], np.uint32)
