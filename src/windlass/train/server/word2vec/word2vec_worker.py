"""A worker of word2vec: draws the pairs of a batch, and trains the rows that they touch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.word2vec import Groups, Ints, changes, draw, moved, pass_key, some_groups
from windlass.spec.run import Run
from windlass.train.server.connections import Facts, ServerConnections
from windlass.train.server.shard_state import ROWS
from windlass.train.server.word2vec.pair_batches import UNITS
from windlass.train.server.word2vec.word2vec_shard import NAMES, NEW, rows_of
from windlass.train.word2vec.learner import Floats, Word2VecLearner
from windlass.train.word2vec.start import THREADS, plan_of

MANY = 3200
"""Concurrent pairs of a row from which on changes are averaged rather than summed."""


class Word2VecTaskRunner:
    """Does the tasks of a word2vec stage."""

    stage = "vectors"

    def __init__(self, run: Run, folder: Path) -> None:
        corpus = load_corpus(Path(run.corpus))
        self._text, self._plan = corpus.train, plan_of(run, corpus)
        learner = Word2VecLearner(corpus.train, self._plan, folder, digest=corpus.digest, threads=THREADS)
        self._sampler = learner.sampler
        self._rows = rows_of(self._plan.vocabulary, run.job.sync.servers)
        self._drawn: tuple[tuple[int, int], Groups] | None = None

    def do(self, order: Facts, connections: ServerConnections) -> Facts:
        groups = self._groups(order)
        rows = {"inputs": _ids(groups.inputs), "outputs": _ids(groups.outputs)}
        version, frames = connections.pull(rows)
        inputs_RD, outputs_RD = (torch.cat([f.arrays[name] for f in frames]).numpy() for name in NAMES)
        alone = order["mode"] == "synchronous" and order["parts"] == 1
        learn = moved if alone else changes
        *found, learnt = learn(groups, inputs_RD, outputs_RD, order["rate"])
        if not alone:
            damp(groups, found, others=order["parts"] - 1)
        connections.push(order["id"], self._shares(rows, found, NEW if alone else ""))
        seen = {"pairs": learnt.pairs, "loss_sum": learnt.loss_sum, "loss_pairs": learnt.loss_pairs}
        return {"version": version, "rows": sum(map(len, rows.values())), **seen}

    def _groups(self, order: Facts) -> Groups:
        """Draw the groups of a block, and return those of the task."""
        block = order["epoch"], order["start"]
        if self._drawn is None or self._drawn[0] != block:
            tokens = np.ascontiguousarray(self._text.read(order["start"], order["stop"]), np.int32)
            key = pass_key(self._plan.seed, order["epoch"])
            self._drawn = block, draw(self._sampler, key, tokens, order["start"])
        drawn = self._drawn[1]
        count = len(drawn.targets_GN)
        return some_groups(drawn, *(count * place // UNITS for place in (order["from"], order["until"])))

    def _shares(self, rows: dict[str, Tensor], found: list[Floats], prefix: str) -> list[dict[str, Tensor]]:
        """Divide the changes among the servers; row ids and servers are in the same order."""
        shares: list[dict[str, Tensor]] = [{} for _ in self._rows]
        for name, values in zip(NAMES, found, strict=True):
            ids = rows[name]
            boundaries = torch.searchsorted(ids, torch.tensor([own.stop for own in self._rows])).tolist()
            for share, first, until in zip(shares, [0, *boundaries], boundaries, strict=False):
                share[name + ROWS] = ids[first:until]
                share[prefix + name] = torch.from_numpy(values[first:until])
        return shares


def damp(groups: Groups, found: Sequence[Floats], others: int) -> None:
    """Scale down, in place, the changes of rows that other workers change at the same time.

    A worker that trains many pairs of a row moves it nearly to its optimum; the sum over all workers would
    overshoot (docs/log.md). So changes of frequent rows are averaged, those of rare rows summed.
    """
    visits_P = np.bincount(groups.contexts_P)[groups.inputs]
    with_N = np.repeat(np.diff(groups.starts)[:, None], groups.targets_GN.shape[1], axis=1)
    named = groups.targets_GN >= 0
    visits_O = np.bincount(groups.targets_GN[named], weights=with_N[named])[groups.outputs]
    for changes_RD, visits_R in zip(found, (visits_P, visits_O), strict=True):
        shared_R = np.minimum(1.0, (others + 1) * visits_R / MANY)
        changes_RD /= (1 + others * shared_R).astype(np.float32)[:, None]


def _ids(rows: Ints) -> Tensor:
    return torch.from_numpy(rows.astype(np.int64))
