"""Counting on Apache Beam: the embedded runner here, Flink, Spark or Dataflow on a cluster.

    blocks -> counted, as everywhere (executor.py) -> by the hash of the window -> merged -> SCRATCH/NNNNNN

Equal windows go to one bucket, so the runs are disjoint, and the merge that follows on the submitting machine
gives the same stream, and so the same model, as counting there. Workers read the corpus in place and write
their runs to a scratch directory that all of them can reach; a bundle that Beam runs twice writes the same
bytes twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import numpy as np
from numpy.typing import NDArray

from windlass.store.beam import BeamRunner, running
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Counted, Keys, Packing, merged
from windlass.train.ngram.executor import BUCKETS, CountTask, WindowRange, counted_block
from windlass.train.ngram.runs import write_run
from windlass.train.ngram.source import TokenSource

MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class BeamCountExecutor:
    """Counts with any of Beam's runners, in a scratch directory that its workers can reach."""

    runner: BeamRunner
    scratch: str

    def __call__(self, task: CountTask, blocks: Sequence[WindowRange]) -> Iterator[int]:
        """Count all blocks in one pipeline, committed when it ends."""
        windows = sum(block.windows for block in blocks)
        if (task.folder / BUCKETS).exists():
            yield windows
            return
        packing, place = task.settings.packing, StoreDir(self.scratch)
        place.remove()
        buckets = max(1, -(-windows // task.settings.block_windows))
        with running(self.runner) as pipeline:
            _ = (
                pipeline
                | "blocks" >> beam.Create(list(blocks), reshuffle=False)
                | "spread" >> beam.Reshuffle()
                | "count" >> beam.FlatMap(CountBlock(task.source, packing, buckets))
                | "meet" >> beam.GroupByKey()
                | "merge" >> beam.MapTuple(MergeBucket(self.scratch))
            )
        _fetch(place, task.folder / BUCKETS)
        yield windows


def _fetch(place: StoreDir, target: Path) -> None:
    """Download and verify the runs; they appear atomically."""
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for name in place.folders():
        run = place.sub(name)
        for file in verify(run).files:
            run.fetch(file, part / name / file)
    part.rename(target)
    place.remove()


@dataclass(frozen=True)
class CountBlock:
    """Counts one block and partitions its windows by hash."""

    source: TokenSource
    packing: Packing
    buckets: int

    def __call__(self, block: WindowRange) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
        counted = counted_block(self.source, block, self.packing)
        bucket = bucket_of(counted.keys, self.buckets)
        for number in np.unique(bucket).tolist():
            here = bucket == number
            yield number, (counted.keys[here].tobytes(), counted.counts[here].tobytes())


@dataclass(frozen=True)
class MergeBucket:
    """Merges the windows of one bucket from all blocks and commits them as a run."""

    scratch: str

    def __call__(self, number: int, pieces: Iterable[tuple[bytes, bytes]]) -> None:
        runs = []
        for keys, counts in pieces:
            length = len(counts) // 8
            table = np.frombuffer(keys, np.uint64).reshape(length, -1)
            runs.append(Counted(table, np.frombuffer(counts, np.uint64)))
        write_run(f"{self.scratch}/{number:06d}", [merged(runs)])


def bucket_of(keys: Keys, buckets: int) -> NDArray[np.int64]:
    """Return the bucket of each window, a hash of the window alone."""
    mixed = np.zeros(len(keys), np.uint64)
    for part in keys.T:
        mixed = (mixed ^ part) * MIX
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(buckets)).astype(np.int64)
