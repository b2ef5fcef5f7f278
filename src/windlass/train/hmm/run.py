"""The training loop of Baum-Welch: when to iterate, log, evaluate and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model. A step is
one iteration over the whole training text, cut into sequences of [model] context tokens. Every process
computes the expected counts of its share (sweep.py); the counts are summed exactly, and each process computes
the same next probabilities. A run that is stopped at any moment and restarted with any number of processes
ends with the same bits as one that never stopped.
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
from windlass.train.hmm.sweep import sweep
from windlass.train.loop import load_run
from windlass.train.runtime_settings import RuntimeSettings

KINDS = {"float32": torch.float32, "float64": torch.float64}


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Start or resume a run. Return True if it finished, False if it was stopped."""
    run, member = load_run(folder), member or RankInfo()
    if member.world != run.layout.world:
        raise BadInput(f"layout {run.layout} needs {run.layout.world} processes, not {member.world}")
    if run.job.machine.device == "cuda":
        raise BadInput(
            "[machine] device = 'cuda': hidden Markov models are trained on CPUs",
            hint="remove [machine] device",
        )
    # One thread per matrix product keeps the bits independent of the thread count; blocks run in parallel.
    device = place_process(MachineSpec(device="cpu"), threads=1)
    record = EventLog(folder, rank=member.rank)
    try:
        with init_process_group(member, device):
            trainer = HmmTrainer(run, folder, record, member)
            trainer.begin()
            return trainer.run_loop(stopped)
    finally:
        record.close()


class HmmTrainer:
    """One process of a run."""

    def __init__(self, run: Run, folder: Path, record: EventLog, member: RankInfo) -> None:
        self.folder, self.record = folder, record
        self.group: ProcessGroup = DistributedGroup() if member.world > 1 else SingleProcess()
        self.reporter = HmmReport(run, folder, record, len(member.cores) or run.threads)
        self.saves = Saves(folder, run.job, record)
        self.requests = RuntimeSettings(run, folder, record, self.group)
        self.state = Progressed(0)

    @property
    def run(self) -> Run:
        """The run with the settings in force."""
        return self.requests.run

    def begin(self) -> None:
        """Load the newest checkpoint or, if there is none, compute the initial probabilities."""
        self.reporter.emit_start(self.group.world)
        found: tuple[HmmWeights, Progressed] | None = None
        with raise_on_all_ranks(self.group, f"{self.folder}: the run could not begin"):
            if self.group.rank == 0:
                found = self.saves.newest() or (self.reporter.first(), Progressed(0))
        progress = self.group.all_gather_json(asdict(found[1]) if found else None)[0]
        self.state = Progressed(**progress)
        self.weights = self._broadcast(found[0] if found else None)
        if self.state.step:
            self.record.emit(
                "resumed", step=self.state.step, layout=str(self.run.layout), source="checkpoint"
            )

    def run_loop(self, stopped: Callable[[], bool]) -> bool:
        """Iterate until the run is over or a process must stop. Return True if the run finished."""
        while not self._over:
            stop = self.requests.at_boundary(self.state.step, stopped)
            if self._over:  # the new settings may have fewer iterations
                break
            if stop or not self._iterate(stopped):
                self._save()
                self.record.emit("stopped", step=self.state.step, steps=self.run.steps)
                self.saves.close()
                return False
            if not self._over:
                self._evaluate_and_save()
        self._finish()
        self.saves.close()
        return True

    @property
    def _over(self) -> bool:
        return self.state.converged or self.state.step >= self.run.steps

    def _evaluate_and_save(self) -> None:
        if self.state.step % self.run.evaluate_every == 0:
            self._evaluate(self.run.evaluate_sequences)
        if self.state.step % self.run.checkpoint_every == 0:
            self._save_if_possible()

    def _iterate(self, stopped: Callable[[], bool]) -> bool:
        """Do one iteration. Return False, with nothing changed, if any process must stop."""
        began, reporter = time.perf_counter(), self.reporter
        kind = KINDS[self.run.job.model.hmm.precision]
        share = (self.group.rank, self.group.world)
        tally = sweep(
            self.weights, reporter.text, threads=reporter.threads, share=share, dtype=kind,
            report=reporter.report, stopped=stopped,
        )  # fmt: skip
        if any(self.group.all_gather_json(tally is None)):
            return False
        assert tally is not None
        self._update(tally, began)
        return True

    def _update(self, tally: ExactSums, began: float) -> None:
        """Sum the expected counts of all processes and compute the next probabilities."""
        if self.group.world > 1:
            tally.gather()
        counts, config, tokens = tally.counts(), self.run.job.model.hmm, self.reporter.text.tokens
        objective = counts.log_likelihood + log_prior(self.weights, config.smoothing)
        self.weights = maximise(counts, self.weights, config.smoothing)
        seconds = self.group.all_gather_json(time.perf_counter() - began)[0]
        ascent = ascended(
            self.state, objective=objective, tokens=tokens, seconds=seconds,
            min_gain=config.min_gain, time_s=self.run.time_s,
        )  # fmt: skip
        self.state = ascent.state
        if self.group.rank == 0:
            loss = -counts.log_likelihood / tokens
            self.reporter.emit_step(self.run, ascent, loss, seconds, self.group.world)
        self.reporter.emit_end(ascent, counts.impossible)

    def _broadcast(self, weights: HmmWeights | None) -> HmmWeights:
        """Return rank 0's probabilities; only rank 0 reads them from disk."""
        states, vocabulary = self.reporter.shape.states, self.reporter.shape.vocabulary
        sizes = ((states,), (states, states), (states, vocabulary))
        tables = list(weights.tables.values()) if weights else [np.empty(size) for size in sizes]
        for table in tables if self.group.world > 1 else ():
            dist.broadcast(torch.from_numpy(table), src=0)
        return HmmWeights(*tables)

    def _evaluate(self, sequences: int | None) -> Evaluation | None:
        """Evaluate on rank 0; other ranks return None."""
        if self.group.rank:
            return None
        return self.reporter.evaluate(self.weights, self.state.step, sequences)

    def _save(self) -> None:
        with raise_on_all_ranks(self.group, f"{self.folder}: the checkpoint could not be written"):
            if self.group.rank == 0:
                self.saves.save(self.weights, self.state)

    def _save_if_possible(self) -> None:
        """A checkpoint that fails costs a checkpoint, not the run."""
        try:
            self._save()
        except StoreFailed as failure:
            self.record.emit("warning", message=failure.message)

    def _finish(self) -> None:
        self._save()
        with raise_on_all_ranks(self.group, f"{self.folder}: the model could not be written"):
            result = self._evaluate(self.run.final_sequences)
            if result is not None:
                self.reporter.export(self.weights, self.state, result)
