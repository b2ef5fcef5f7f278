"""A worker of a hidden Markov run: does the E-step for a part of the text, and pushes integer counts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.hmm.weights import HmmWeights
from windlass.parallel.device import place_process
from windlass.spec.job import MachineSpec
from windlass.spec.run import Run
from windlass.spec.shape import HmmShape
from windlass.train.hmm.exact_sum import ExactSums
from windlass.train.hmm.run import KINDS
from windlass.train.hmm.sweep import sweep
from windlass.train.hmm.text import text_of_corpus
from windlass.train.server.connections import Facts, ServerConnections
from windlass.train.server.hmm.hmm_shard import assembled, states_of
from windlass.train.server.shard_state import ROWS


class HmmTaskRunner:
    """Does the tasks of a hidden Markov run."""

    stage = "hidden"

    def __init__(self, run: Run, threads: int) -> None:
        assert isinstance(run.shape, HmmShape)
        place_process(MachineSpec(device="cpu"), threads=1)  # threads are per block, not per matrix product
        self._text = text_of_corpus(load_corpus(Path(run.corpus)), run.shape.context)
        self._kind, self._threads = KINDS[run.job.model.hmm.precision], threads
        self._states = states_of(run.shape.states, run.job.sync.servers)
        self._version = 0
        self._weights: HmmWeights | None = None

    def do(self, order: Facts, connections: ServerConnections) -> Facts:
        if self._weights is None or connections.stamp != order["stamp"]:
            self._version, frames = connections.pull({})
            self._weights = assembled([frame.arrays for frame in frames])
        blocks = range(order["first"], order["until"])
        tally = sweep(self._weights, self._text, threads=self._threads, only=blocks, dtype=self._kind)
        assert tally is not None
        likelihood, impossible = tally.facts
        connections.push(order["id"], self._shares(tally))
        return {"version": self._version, "likelihood": likelihood, "impossible": impossible}

    def _shares(self, tally: ExactSums) -> list[dict[str, Tensor]]:
        """Divide counts among the servers by states; of emissions, only the tokens that were seen."""
        start_K, transition_KK, emission_VK = tally.sums
        tokens_U = torch.nonzero(emission_VK.any(1)).view(-1)
        emission_UK, shares = emission_VK[tokens_U], list[dict[str, Tensor]]()
        for own in self._states:
            share = {"transition": transition_KK[own.start : own.stop], "emission" + ROWS: tokens_U}
            share["emission"] = emission_UK[:, own.start : own.stop].contiguous()
            shares.append(share)
        shares[0]["start"] = start_K
        return shares
