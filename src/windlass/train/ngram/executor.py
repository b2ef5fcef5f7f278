"""Who counts blocks: processes of this machine here, a cluster in on_beam.py.

Input: blocks of a text. Output: sorted runs, each a committed directory. The counting itself
is a pure function of the block (blocks.py), whoever does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.corpus.pool import spread
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import Place
from windlass.train.ngram.blocks import Counted, Packing, count_block
from windlass.train.ngram.runs import write_run
from windlass.train.ngram.settings import Settings
from windlass.train.ngram.source import Source, windows_of


@dataclass(frozen=True)
class Block:
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
class Task:
    """What is counted, and where the runs go."""

    source: Source
    settings: Settings
    folder: Path


Hands = Callable[[Task, Sequence[Block]], Iterator[int]]
"""Counts blocks, or finds them counted; yields, as they are done, how many windows they had."""

BUCKETS = "buckets"
"""A directory of runs that were made from all blocks together; it is there once they are whole."""


def runs_in(folder: Path) -> list[Path]:
    """Return the runs of a text that is counted."""
    return sorted((folder / BUCKETS).glob("*")) or sorted(folder.glob("block-*"))


def pool_hands(task: Task, blocks: Sequence[Block]) -> Iterator[int]:
    """Count in processes of this machine; each block becomes a run, committed as soon as it is counted."""
    whole = (task.folder / BUCKETS).exists()
    left = [b for b in blocks if not whole and load_manifest(Place(task.folder / b.name)) is None]
    arguments = (task.source, task.settings.packing, task.folder)
    workers = min(task.settings.workers, len(left))
    if len(left) < len(blocks):
        yield sum(block.windows for block in blocks) - sum(block.windows for block in left)
    yield from spread(_count, left, processes=workers, prepare=_prepare, arguments=arguments)


def counted_block(source: Source, block: Block, packing: Packing) -> Counted:
    """Read a block and count it."""
    tokens = windows_of(source, block.start, block.stop, packing.order, packing.end)
    return count_block(tokens, block.windows, packing)


class _Worker:
    """What a process keeps between blocks."""

    source: Source
    packing: Packing
    folder: Path


def _prepare(source: Source, packing: Packing, folder: Path) -> None:
    _Worker.source, _Worker.packing, _Worker.folder = source, packing, folder


def _count(block: Block) -> int:
    write_run(_Worker.folder / block.name, [counted_block(_Worker.source, block, _Worker.packing)])
    return block.windows
