"""The stages of a model, one after the other, each committed before the next begins.

    1 count      blocks of the text -> sorted runs, in several processes; each run is committed by itself
    2 merge      runs -> the tree of all orders
    3 link       suffixes and adjusted counts
    4 estimate   the arrays of the model

Input: a source of tokens and Settings. Output: Estimates. A build that is stopped or killed goes on where
it was: what is committed stays, what is not is made again. The bytes of the result depend on the text and
the model that is wanted, not on memory, blocks or processes.
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
from windlass.train.ngram.executor import CountExecutor, CountTask, WindowRange, pool_hands, runs_in
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
    hands: CountExecutor = pool_hands
    """Who counts the blocks."""

    def run(self, told: Callable[[int], None] = lambda stage: None) -> Estimates | None:
        """Do what is left to do, calling `told` with each stage that is done; return None when stopped."""
        check_source(self.source, self.settings.packing.end)
        self._settle()
        try:
            for number, stage in enumerate((self._count, self._merge, self._link), start=1):
                stage()
                told(number)
                self._heed()
            made = self._estimate()
        except _Stopped:
            return None
        told(len(STAGES))
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
        """Go on with blocks as they were; clear away a build of anything else."""
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

    def _tell(self, progress: Progress) -> None:
        """Say how far it is, and stop here if that is wished: what is not committed is made again."""
        self.report(progress)
        self._heed()

    def _heed(self) -> None:
        if self.stopped():
            raise _Stopped

    def _count(self) -> None:
        if self._is_done("tree"):
            return
        done = 0
        for windows in self.hands(CountTask(self.source, self.settings, self.folder), self._blocks):
            done += windows
            self._tell(Progress("count", done, self.source.tokens, "tokens"))

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
            self._tell(Progress("merge", done, total, "tokens"))

    def _link(self) -> None:
        if self._is_done("links"):
            return
        folder = self.folder / "links"
        shutil.rmtree(folder, ignore_errors=True)
        writer = DirectoryWriter(StoreDir(folder))
        end, chunk = self.settings.packing.end, self.settings.chunk
        write_links(writer, folder, self._tree, end, chunk=chunk, report=self._tell)
        writer.commit()

    def _estimate(self) -> Estimates:
        statistics = Statistics(self._tree, self.folder / "links", self.settings.thresholds)
        estimates = Estimates(self.folder / "estimates", self.settings.packing.vocabulary)
        return estimate(statistics, estimates, chunk=self.settings.chunk, report=self._tell)


class _Stopped(Exception):
    """Leaves the stages when stopping is wished."""
