"""The stages of a model, one after the other, each committed before the next begins.

    1 count      blocks of the text -> sorted runs, in several processes; each run is committed by itself
    2 merge      runs -> the tree of all orders
    3 link       suffixes and adjusted counts
    4 estimate   the arrays of the model

Input: a TokenSource and CountSettings. Output: Estimates. A build that was stopped or killed resumes:
committed stages are kept, the others are repeated. The bytes of the result depend on the text and the model
settings, not on memory, blocks or processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.manifest import DirectoryWriter, load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Counted
from windlass.train.ngram.estimate import Estimates, Statistics, estimate
from windlass.train.ngram.executor import (
    CountExecutor,
    CountTask,
    WindowRange,
    process_pool_executor,
    runs_in,
)
from windlass.train.ngram.links import write_links
from windlass.train.ngram.mmap_arrays import Tree
from windlass.train.ngram.runs import MIN_CHUNK, merge_runs, write_run
from windlass.train.ngram.settings import SHARE, CountSettings
from windlass.train.ngram.source import TokenSource, check_source
from windlass.train.ngram.tree import write_tree

STAGES = ("count", "merge", "link", "estimate")
PLAN = "plan.json"


@dataclass
class Build:
    """A build in its directory."""

    source: TokenSource
    settings: CountSettings
    folder: Path
    report: Report = silent
    stopped: Callable[[], bool] = lambda: False
    executor: CountExecutor = process_pool_executor
    """Counts the blocks."""

    def run(self, on_stage: Callable[[int], None] = lambda stage: None) -> Estimates | None:
        """Run the remaining stages, calling `on_stage` after each; return None when stopped."""
        check_source(self.source, self.settings.packing.end)
        self._settle()
        try:
            for number, stage in enumerate((self._count, self._merge, self._link), start=1):
                stage()
                on_stage(number)
                self._raise_if_stopped()
            made = self._estimate()
        except _Stopped:
            return None
        on_stage(len(STAGES))
        return made

    def clear(self) -> None:
        """Remove everything, once the model is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _tree(self) -> Tree:
        packing = self.settings.packing
        return Tree(self.folder / "tree", packing.order, packing.vocabulary)

    @property
    def _blocks(self) -> list[WindowRange]:
        size, total = self._block, self.source.tokens
        return [
            WindowRange(i, start, min(start + size, total)) for i, start in enumerate(range(0, total, size))
        ]

    def _settle(self) -> None:
        """Resume with the recorded block size; remove a build of another text or model."""
        packing, place = self.settings.packing, StoreDir(self.folder)
        wanted = {"order": packing.order, "vocabulary": packing.vocabulary, "end": packing.end}
        wanted |= {"tokens": self.source.tokens}
        plan = json.loads(place.read(PLAN)) if place.exists(PLAN) else {}
        if {key: plan.get(key) for key in wanted} != wanted:
            self.clear()
            even = max(SHARE, -(-self.source.tokens // self.settings.workers))
            plan = {**wanted, "block": self.settings.block or min(self.settings.block_windows, even)}
            place.write(PLAN, json.dumps(plan).encode())
        self._block = int(plan["block"])

    def _is_done(self, stage: str) -> bool:
        return load_manifest(StoreDir(self.folder / stage)) is not None

    def _report(self, progress: Progress) -> None:
        """Report progress, and raise _Stopped if requested: uncommitted work is repeated later."""
        self.report(progress)
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self.stopped():
            raise _Stopped

    def _count(self) -> None:
        if self._is_done("tree"):
            return
        done = 0
        for windows in self.executor(CountTask(self.source, self.settings, self.folder), self._blocks):
            done += windows
            self._report(Progress("count", done, self.source.tokens, "tokens"))

    def _merge(self) -> None:
        if self._is_done("tree"):
            return
        folder, packing = self.folder / "tree", self.settings.packing
        shutil.rmtree(folder, ignore_errors=True)
        for debris in self.folder.glob("some-*"):
            shutil.rmtree(debris)
        runs = runs_in(self.folder)
        while len(runs) > 2 and self.settings.piece // len(runs) < MIN_CHUNK:
            runs = self._merge_some(runs)
        writer = DirectoryWriter(StoreDir(folder))
        stream = merge_runs(runs, packing, max(1, self.settings.piece // len(runs)))
        nodes = write_tree(writer, self._watched(stream), packing)
        writer.commit({"nodes": nodes})
        for run in [*runs_in(self.folder), *self.folder.glob("some-*")]:
            shutil.rmtree(run)

    def _merge_some(self, runs: list[Path]) -> list[Path]:
        """Merge runs in groups, where there are more than can be read at once."""
        group = max(2, self.settings.piece // MIN_CHUNK)
        longer = []
        for first in range(0, len(runs), group):
            some = runs[first : first + group]
            target = self.folder / f"some-{some[0].name}-{len(some)}"
            write_run(target, merge_runs(some, self.settings.packing, self.settings.piece // len(some)))
            longer.append(target)
        return longer

    def _watched(self, stream: Iterator[Counted]) -> Iterator[Counted]:
        total, done = self.source.tokens, 0
        for piece in stream:
            yield piece
            done += int(piece.counts.sum())
            self._report(Progress("merge", done, total, "tokens"))

    def _link(self) -> None:
        if self._is_done("links"):
            return
        folder = self.folder / "links"
        shutil.rmtree(folder, ignore_errors=True)
        writer = DirectoryWriter(StoreDir(folder))
        end, chunk = self.settings.packing.end, self.settings.chunk
        write_links(writer, folder, self._tree, end, chunk=chunk, report=self._report)
        writer.commit()

    def _estimate(self) -> Estimates:
        statistics = Statistics(self._tree, self.folder / "links", self.settings.thresholds)
        estimates = Estimates(self.folder / "estimates", self.settings.packing.vocabulary)
        return estimate(statistics, estimates, chunk=self.settings.chunk, report=self._report)


class _Stopped(Exception):
    """Leaves the stages after a stop request."""
