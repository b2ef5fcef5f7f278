"""Counted windows on disk, and many sorted runs merged into one stream.

A run is a committed directory with a file of keys and one of counts. Merging reads a chunk of every run at a
time: all keys up to the smallest of the chunks' last keys are in memory, so these are merged and yielded.
Memory is one chunk per run, however long the runs are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Counted, Keys, Packing, merged

KEYS, COUNTS = "keys.bin", "counts.bin"
MIN_CHUNK = 1 << 12


@dataclass
class StoredRun:
    """A run that is read sequentially from its directory."""

    folder: Path
    parts: int

    def __post_init__(self) -> None:
        self._length = (self.folder / COUNTS).stat().st_size // 8
        self._at = 0

    def __len__(self) -> int:
        """Return the number of windows left to read."""
        return self._length - self._at

    def take(self, count: int) -> Counted:
        """Read the next windows. Nothing stays mapped."""
        count, at = min(count, len(self)), 8 * self._at
        keys = np.fromfile(self.folder / KEYS, np.uint64, count * self.parts, offset=at * self.parts)
        counts = np.fromfile(self.folder / COUNTS, np.uint64, count, offset=at)
        self._at += count
        return Counted(keys.reshape(count, self.parts), counts)


def write_run(folder: Path | str, pieces: Iterable[Counted]) -> int:
    """Write sorted windows as a committed directory; return their number."""
    writer, length = DirectoryWriter(StoreDir(folder)), 0
    with writer.writing(KEYS) as keys, writer.writing(COUNTS) as counts:
        for piece in pieces:
            keys.write(np.ascontiguousarray(piece.keys).data)
            counts.write(np.ascontiguousarray(piece.counts).data)
            length += len(piece)
    writer.commit({"windows": length})
    return length


def merge_runs(folders: Sequence[Path], packing: Packing, chunk: int) -> Iterator[Counted]:
    """Yield all windows of some runs, sorted and without duplicates; `chunk` windows of each run are in
    memory."""
    runs = [StoredRun(path, packing.parts) for path in folders]
    held = [run.take(chunk) for run in runs]
    while any(len(one) for one in held):
        until = _smallest([one.keys[-1] for one, run in zip(held, runs, strict=True) if len(run)])
        cuts = [len(one) if until is None else _place_after(one.keys, until) for one in held]
        ready = [
            Counted(one.keys[:cut], one.counts[:cut]) for one, cut in zip(held, cuts, strict=True) if cut
        ]
        held = [_refilled(one, cut, run, chunk) for one, cut, run in zip(held, cuts, runs, strict=True)]
        yield merged(ready)


def _refilled(held: Counted, cut: int, run: StoredRun, chunk: int) -> Counted:
    rest = Counted(held.keys[cut:], held.counts[cut:])
    if len(rest) >= chunk or not len(run):
        return rest
    more = run.take(chunk - len(rest))
    return Counted(np.concatenate([rest.keys, more.keys]), np.concatenate([rest.counts, more.counts]))


def _smallest(keys: Sequence[Keys]) -> tuple[int, ...] | None:
    return min((tuple(key.tolist()) for key in keys), default=None)


def _place_after(keys: Keys, until: tuple[int, ...]) -> int:
    """Return how many of the sorted keys are not greater than `until`."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if tuple(keys[middle].tolist()) <= until:
            low = middle + 1
        else:
            high = middle
    return low
