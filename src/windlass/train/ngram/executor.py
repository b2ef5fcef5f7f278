"""Executors that count blocks: processes of this machine here, a cluster in on_beam.py.

Input: blocks of a text. Output: sorted runs, each a committed directory. Counting is a pure function of the
block (blocks.py), so every executor gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.corpus.pool import spread
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Counted, Packing, count_block
from windlass.train.ngram.runs import write_run
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import TokenSource, windows_of


@dataclass(frozen=True)
class WindowRange:
    """The windows start..stop of a text."""

    number: int
    start: int
    stop: int

    @property
    def windows(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        return f"block-{self.number:06d}"


@dataclass(frozen=True)
class CountTask:
    """The text to count, and the directory for the runs."""

    source: TokenSource
    settings: CountSettings
    folder: Path


CountExecutor = Callable[[CountTask, Sequence[WindowRange]], Iterator[int]]
"""Counts the blocks that are not yet counted; yields the number of windows of each as it is done."""

BUCKETS = "buckets"
"""A directory of runs made from all blocks together; it appears when they are complete."""


def runs_in(folder: Path) -> list[Path]:
    """Return the runs of a counted text."""
    return sorted((folder / BUCKETS).glob("*")) or sorted(folder.glob("block-*"))


def process_pool_executor(task: CountTask, blocks: Sequence[WindowRange]) -> Iterator[int]:
    """Count in processes of this machine; each block becomes a run, committed as soon as it is counted."""
    whole = (task.folder / BUCKETS).exists()
    left = [b for b in blocks if not whole and load_manifest(StoreDir(task.folder / b.name)) is None]
    arguments = (task.source, task.settings.packing, task.folder)
    workers = min(task.settings.workers, len(left))
    if len(left) < len(blocks):
        yield sum(block.windows for block in blocks) - sum(block.windows for block in left)
    yield from spread(_count, left, processes=workers, prepare=_prepare, arguments=arguments)


def counted_block(source: TokenSource, block: WindowRange, packing: Packing) -> Counted:
    """Read a block and count it."""
    tokens = windows_of(source, block.start, block.stop, packing.order, packing.end)
    return count_block(tokens, block.windows, packing)


class _Worker:
    """State that a process keeps between blocks."""

    source: TokenSource
    packing: Packing
    folder: Path


def _prepare(source: TokenSource, packing: Packing, folder: Path) -> None:
    _Worker.source, _Worker.packing, _Worker.folder = source, packing, folder


def _count(block: WindowRange) -> int:
    write_run(_Worker.folder / block.name, [counted_block(_Worker.source, block, _Worker.packing)])
    return block.windows
