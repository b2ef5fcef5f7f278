"""One server's rows of the two matrices of word2vec: the same rows of both.

A push lists the rows that it touches, with the values to add; or, if no other worker can have changed them,
with their new values, which are bit-identical to those of a local run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.word2vec import first_matrices
from windlass.spec.errors import BadInput
from windlass.spec.run import Run
from windlass.train.checkpoint.async_save import State
from windlass.train.collective_errors import raise_on_all_ranks
from windlass.train.server.shard_state import ROWS, ServerGroup, Share
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.word2vec.pair_batches import SIZE, PairBatches
from windlass.train.word2vec.learner import PASSES, newest_pass
from windlass.train.word2vec.start import plan_of

NAMES = ("inputs", "outputs")
NEW = "new "
"""Prefix of an array that replaces rows."""

Write = Callable[[State, Tensor, Tensor], None]


class Word2VecShardState:
    """The rows of one server."""

    stage = "vectors"
    due = False

    def __init__(self, run: Run, folder: Path, number: int) -> None:
        self._folder, corpus = folder, load_corpus(Path(run.corpus))
        self._plan = plan_of(run, corpus)
        self._grid = PairBatches(corpus.train.tokens, self._plan.epochs)
        self.rows = rows_of(self._plan.vocabulary, run.job.sync.servers)[number]
        if not self.rows:
            raise BadInput(f"[sync] servers = {run.job.sync.servers}: not enough tokens for so many")
        self.write: Write | None = None
        """Writes a checkpoint of the whole matrices; set by the primary's task."""

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self._tables.values())

    def load(self) -> tuple[State | None, list[str]]:
        found, plan = newest_pass(self._folder), self._plan
        if found is None:
            first = first_matrices(plan.vocabulary, plan.width, plan.seed)
            self._hold(first.inputs_VS[:, : plan.width], first.outputs_VS[:, : plan.width])
            return None, []
        vectors = found[1]
        self._hold(vectors.inputs_VD, vectors.outputs_VD)
        step = self._grid.step_at(int(vectors.metadata["epoch"]), int(vectors.metadata["position"]))
        return State(step, step * SIZE, float(vectors.metadata["seconds"])), []

    def values(self, rows: Share, _ahead: int) -> dict[str, Tensor]:
        arrays: dict[str, Tensor] = {}
        for name, table in self._tables.items():
            wanted = rows.get(name + ROWS)
            if wanted is None:
                arrays[name] = table.clone()
                continue
            inside = wanted[(wanted >= self.rows.start) & (wanted < self.rows.stop)]
            arrays[name + ROWS], arrays[name] = inside, table[inside - self.rows.start]
        return arrays

    def check(self, share: Share) -> None:
        for name, table in self._tables.items():
            rows, given = share.get(name + ROWS), share.get(name, share.get(NEW + name))
            if rows is None or given is None or tuple(given.shape) != (len(rows), table.shape[1]):
                raise BadInput(f"a push must say rows of '{name}' and {table.shape[1]} numbers for each")
            if len(rows) and not self.rows.start <= int(rows.min()) <= int(rows.max()) < self.rows.stop:
                raise BadInput(f"a push names rows of '{name}' that are not here, which are {self.rows}")

    def square(self, _shares: Sequence[Share]) -> float:
        raise AssertionError("rows are not clipped")

    def apply(self, shares: Sequence[Share], _update: ServerUpdate) -> dict[str, Any]:
        for share in shares:
            for name, table in self._tables.items():
                at = share[name + ROWS] - self.rows.start
                if NEW + name in share:
                    table[at] = share[NEW + name]
                else:
                    table[at] += share[name]  # no row is named twice
        return {}

    def unsaved(self) -> Iterator[tuple[dict[str, Any], Share]]:
        return iter(())

    def restore_unsaved(self, head: Mapping[str, Any], share: Share) -> None:
        raise AssertionError("a checkpoint of vectors holds everything")

    def missing_for(self, _update: ServerUpdate) -> list[str]:
        return []

    def save(self, state: State, group: ServerGroup) -> Path:
        with raise_on_all_ranks(group, f"{self._folder / PASSES}: the vectors could not be saved"):
            shares = group.gather(self._tables)
            if shares is not None:
                assert self.write is not None
                self.write(state, *(torch.cat([share[name] for share in shares]) for name in NAMES))
        return self._folder / PASSES

    def close(self, _within_s: float) -> None:
        """Nothing to close."""

    def _hold(self, inputs_VD: Any, outputs_VD: Any) -> None:
        own = slice(self.rows.start, self.rows.stop)
        tables = zip(NAMES, (inputs_VD, outputs_VD), strict=True)
        self._tables = {name: torch.from_numpy(table[own].copy()) for name, table in tables}


def rows_of(vocabulary: int, servers: int) -> list[range]:
    """Divide the rows evenly among the servers."""
    boundaries = [vocabulary * n // servers for n in range(servers + 1)]
    return [range(boundaries[n], boundaries[n + 1]) for n in range(servers)]
