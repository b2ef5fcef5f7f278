"""A run of Baum and Welch: when to iterate, tell, evaluate and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model. A step is
one iteration over the whole training text, cut into sequences of [model] context tokens. Every process of the
run expects a part of it (sweep.py); their counts are added up exactly, and each computes the same next
probabilities from them. Stopped at any moment and started again, with any number of processes, it ends with
the same bits as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from windlass.models.hmm.weights import HmmWeights
from windlass.parallel.device import place_process
from windlass.parallel.device_mesh import init_process_group
from windlass.parallel.process_group import DistributedGroup, ProcessGroup, SingleProcess
from windlass.spec.errors import BadInput, StoreFailed
from windlass.spec.job import MachineSpec
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.train.collective_errors import raise_on_all_ranks
from windlass.train.evaluate import Evaluation
from windlass.train.event_log import EventLog
from windlass.train.hmm.checkpoints import Progressed, Saves
from windlass.train.hmm.convergence import ascended
from windlass.train.hmm.exact_sum import ExactSums
from windlass.train.hmm.maximise import log_prior, maximise
from windlass.train.hmm.report import HmmReport
from windlass.train.hmm.settings_requests import HmmSettings
from windlass.train.hmm.sweep import sweep
from windlass.train.loop import load_run

KINDS = {"float32": torch.float32, "float64": torch.float64}


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run, member = load_run(folder), member or RankInfo()
    if member.world != run.layout.world:
        raise BadInput(f"layout {run.layout} needs {run.layout.world} processes, not {member.world}")
    if run.job.machine.device == "cuda":
        raise BadInput(
            "[machine] device = 'cuda': hidden Markov models are trained on CPUs", hint="leave it out"
        )
    # One thread for each product, so that its bits do not depend on how many there are: blocks have threads.
    device = place_process(MachineSpec(device="cpu"), threads=1)
    record = EventLog(folder, rank=member.rank)
    try:
        with init_process_group(member, device):
            climb = Climb(run, folder, record, member)
            climb.begin()
            return climb.go_on(stopped)
    finally:
        record.close()


class Climb:
    """One process's part of a run."""

    def __init__(self, run: Run, folder: Path, record: EventLog, member: RankInfo) -> None:
        self.run, self.folder, self.record = run, folder, record
        self.crew: ProcessGroup = DistributedGroup() if member.world > 1 else SingleProcess()
        self.account = HmmReport(run, folder, record, len(member.cores) or run.threads)
        self.saves = Saves(folder, run.job, record)
        self.requests = HmmSettings(folder, run, self.crew, record)
        self.state = Progressed(0)

    def begin(self) -> None:
        """Come to the newest checkpoint or, where there is none, to the first probabilities."""
        self.account.tell_start(self.crew.world)
        found: tuple[HmmWeights, Progressed] | None = None
        with raise_on_all_ranks(self.crew, f"{self.folder}: the run could not begin"):
            if self.crew.rank == 0:
                found = self.saves.newest() or (self.account.first(), Progressed(0))
        told = self.crew.share(asdict(found[1]) if found else None)[0]
        self.state = Progressed(**told)
        self.weights = self._agreed(found[0] if found else None)
        if self.state.step:
            self.record.tell(
                "resumed", step=self.state.step, layout=str(self.run.layout), source="checkpoint"
            )

    def go_on(self, stopped: Callable[[], bool]) -> bool:
        """Iterate until the run is over or anybody is asked to stop."""
        while not self._over:
            self.run, stop = self.requests.heed(self.state.step, stopped)
            if self._over:  # fewer iterations were asked for
                break
            if stop or not self._iterate(stopped):
                self._save()
                self.record.tell("stopped", step=self.state.step, steps=self.run.steps)
                self.saves.close()
                return False
            if not self._over:
                self._look_and_save()
        self._finish()
        self.saves.close()
        return True

    @property
    def _over(self) -> bool:
        return self.state.converged or self.state.step >= self.run.steps

    def _look_and_save(self) -> None:
        if self.state.step % self.run.evaluate_every == 0:
            self._evaluate(self.run.evaluate_sequences)
        if self.state.step % self.run.checkpoint_every == 0:
            self._save_if_possible()

    def _iterate(self, stopped: Callable[[], bool]) -> bool:
        """Do one iteration; return False, with nothing changed, when somebody was asked to stop."""
        began, account = time.perf_counter(), self.account
        kind = KINDS[self.run.job.model.hmm.precision]
        share = (self.crew.rank, self.crew.world)
        tally = sweep(
            self.weights, account.text, threads=account.threads, share=share, dtype=kind,
            report=account.report, stopped=stopped,
        )  # fmt: skip
        if any(self.crew.share(tally is None)):
            return False
        assert tally is not None
        self._climb(tally, began)
        return True

    def _climb(self, tally: ExactSums, began: float) -> None:
        """Take the next probabilities from what all processes expect."""
        if self.crew.world > 1:
            tally.gather()
        counts, asked, tokens = tally.counts(), self.run.job.model.hmm, self.account.text.tokens
        objective = counts.log_likelihood + log_prior(self.weights, asked.smoothing)
        self.weights = maximise(counts, self.weights, asked.smoothing)
        seconds = self.crew.share(time.perf_counter() - began)[0]
        ascent = ascended(
            self.state, objective=objective, tokens=tokens, seconds=seconds,
            min_gain=asked.min_gain, time_s=self.run.time_s,
        )  # fmt: skip
        self.state = ascent.state
        if self.crew.rank == 0:
            loss = -counts.log_likelihood / tokens
            self.account.tell_step(self.run, ascent, loss, seconds, self.crew.world)
        self.account.tell_end(ascent, counts.impossible)

    def _agreed(self, weights: HmmWeights | None) -> HmmWeights:
        """Return rank 0's probabilities: only it reads them from the disk."""
        states, vocabulary = self.account.shape.states, self.account.shape.vocabulary
        sizes = ((states,), (states, states), (states, vocabulary))
        tables = list(weights.tables.values()) if weights else [np.empty(size) for size in sizes]
        for table in tables if self.crew.world > 1 else ():
            dist.broadcast(torch.from_numpy(table), src=0)
        return HmmWeights(*tables)

    def _evaluate(self, sequences: int | None) -> Evaluation | None:
        """Measure on rank 0 alone."""
        if self.crew.rank:
            return None
        return self.account.evaluate(self.weights, self.state.step, sequences)

    def _save(self) -> None:
        with raise_on_all_ranks(self.crew, f"{self.folder}: the checkpoint could not be written"):
            if self.crew.rank == 0:
                self.saves.save(self.weights, self.state)

    def _save_if_possible(self) -> None:
        """A checkpoint that fails costs a checkpoint, not the run."""
        try:
            self._save()
        except StoreFailed as failure:
            self.record.tell("warning", message=failure.message)

    def _finish(self) -> None:
        self._save()
        with raise_on_all_ranks(self.crew, f"{self.folder}: the model could not be written"):
            result = self._evaluate(self.run.final_sequences)
            if result is not None:
                self.account.export(self.weights, self.state, result)
