"""Memory-mapped arrays in the files of a committed stage; the kernel manages their pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.trie import MAX_ORDER
from windlass.store.manifest import DirectoryWriter

assert MAX_ORDER < 10, "names of files end in one digit"


def mapped(path: Path, kind: str, *, length: int | None = None) -> NDArray[Any]:
    """Map a file of numbers; with a length, create it filled with zeros and writable."""
    if length is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return np.memmap(path, kind, "w+", shape=(length,)) if length else _empty(path, kind)
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


def _empty(path: Path, kind: str) -> NDArray[Any]:
    path.touch()
    return np.empty(0, kind)


def adopt(writer: DirectoryWriter, array: NDArray[Any], name: str) -> None:
    """Take an array that was written in place into the directory to commit."""
    if isinstance(array, np.memmap):
        array.flush()
    writer.adopt(name)


@dataclass(frozen=True)
class Tree:
    """The files that tree.py wrote."""

    folder: Path
    order: int
    vocabulary: int

    def words(self, order: int) -> NDArray[np.uint32]:
        return mapped(self.folder / f"words-{order}", "<u4")

    def counts(self, order: int) -> NDArray[np.uint64]:
        return mapped(self.folder / f"counts-{order}", "<u8")

    def begins(self, order: int) -> NDArray[np.uint32]:
        """Where the children of each node begin; in order 1 every id has an entry."""
        begins = mapped(self.folder / f"begins-{order}", "<u4")
        if order > 1:
            return begins
        sizes = np.zeros(self.vocabulary, np.int64)
        sizes[self.words(1)] = np.diff(begins.astype(np.int64))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)

    def nodes(self, order: int) -> int:
        return (self.folder / f"words-{order}").stat().st_size // 4 if order > 1 else self.vocabulary

    def after_end(self, end: int) -> Iterator[tuple[int, slice]]:
        """Yield, for each order from 2 on, which nodes begin with the beginning of a document."""
        first, last = end, end + 1
        for order in range(2, self.order + 1):
            begins = self.begins(order - 1)
            first, last = int(begins[first]), int(begins[last])
            yield order, slice(first, last)


def parents_of(begins: NDArray[np.uint32], max_children: int) -> Iterator[tuple[int, int]]:
    """Divide parents into ranges [first, last) with about `max_children` children each; at least one
    parent."""
    first, last = 0, len(begins) - 1
    while first < last:
        until = int(np.searchsorted(begins, int(begins[first]) + max_children, side="right")) - 1
        until = min(max(until, first + 1), first + max_children, last)
        yield first, until
        first = until
