"""A hidden Markov run on servers: each iteration covers every block of the text once.

In synchronous mode an iteration is one update, with the same bits as the local run for any number of workers.
In the other modes each part of the text is an update of its own (hmm_shard.py), and an iteration is all parts
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.corpus.batches import share_of
from windlass.models.hmm.weights import HmmWeights
from windlass.parallel.process_group import SingleProcess
from windlass.spec.errors import StoreFailed
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.sync import Sync
from windlass.train.checkpoint.async_save import State, committed
from windlass.train.event_log import EventLog
from windlass.train.hmm.checkpoints import Progressed
from windlass.train.hmm.convergence import ascended
from windlass.train.hmm.exact_sum import fraction_bits, likelihood_of
from windlass.train.hmm.maximise import log_prior_of
from windlass.train.runtime_settings import RuntimeSettings
from windlass.train.server.hmm.hmm_shard import HmmShardState, assembled
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.task import TaskProgress
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask

MIN_BLOCKS = 2
"""Minimum per worker; with fewer blocks the run is synchronous, whatever the mode."""
PARTS_EACH = 4
"""Parts of an iteration per worker: small parts lose less work with a worker and shorten the wait at the
end."""


class HmmTask:
    """The primary's side of a hidden Markov run."""

    needs_norm = False

    def __init__(self, run: Run, folder: Path, record: EventLog, primary: PrimaryServer) -> None:
        self._folder, self.record, self._primary = folder, record, primary
        self._requests = RuntimeSettings(run, folder, record, SingleProcess())
        part = primary.shard.part
        assert isinstance(part, HmmShardState)
        self._part, self._reporter = part, part.reporter
        part.write = self._write
        self.size = part.blocks
        self._bits = fraction_bits(self._reporter.text.tokens)
        self._stale: Counter[int] = Counter()
        self._divided_for = primary.wanted_workers
        self.state = Progressed(0)

    def begin(self, base: State, updates: Sequence[ServerUpdate], _skipped: Sequence[str]) -> None:
        self._reporter.emit_start(
            self.run.layout.world, servers=self.run.job.sync.servers, mode=self.run.job.sync.mode
        )
        self.state = self._part.loaded
        noted = self._part.notes.get("state")
        if noted is not None and noted["step"] == self._primary.step:
            self.state = Progressed(**noted)
        elif self._primary.step > self.state.step:  # the gain of the last iteration was not logged
            self.state = Progressed(self._primary.step, self._primary.train_s)
        self._stale.update(update.stale for update in updates)
        self._began_s, self._evaluated_at = self._primary.train_s, base.step
        if self.sync.mode != self.run.job.sync.mode:
            few = f"the text has only {self.size} blocks, too few for {self._divided_for} workers"
            self.record.emit("warning", message=f"{few}: mode = 'synchronous' is used")
        if self._primary.step or updates:
            layout = str(self.run.layout)
            source = "log" if updates else "checkpoint"
            self.record.emit("resumed", step=self._primary.step, layout=layout, source=source)

    @property
    def run(self) -> Run:
        """The run with the settings in force."""
        return self._requests.run

    @property
    def sync(self) -> Sync:
        """As configured; with too little text it is synchronous, or workers would count the same blocks
        repeatedly."""
        sync = self.run.job.sync
        enough = self.size >= MIN_BLOCKS * self._divided_for
        return sync if enough else sync.model_copy(update={"mode": "synchronous"})

    @property
    def over(self) -> bool:
        return self.state.converged or self.state.step >= self.run.steps

    @property
    def waiting(self) -> bool:
        return self._requests.waiting or self._primary.wanted_workers != self._divided_for

    def limit(self, step: int) -> int:
        """Parts of two iterations may overlap only once each part has been counted: then the counts at the
        end of an iteration always cover the whole text."""
        self._divided_for = self._primary.wanted_workers
        run, parts = self.run, min(self.size, self.parts(self._divided_for))
        if self.sync.mode != "synchronous" and self._part.kept(parts) < parts:
            return min(run.steps, step + 1)
        later = [every * (step // every + 1) for every in (run.evaluate_every, run.checkpoint_every)]
        return min(run.steps, *later)

    def aligned(self, step: int) -> int:
        return step

    def parts(self, _workers: int) -> int:
        """Changes only at a boundary: the counts of a different division cannot be replaced one by one."""
        return PARTS_EACH * self._divided_for

    def order(self, task: WorkerTask) -> Facts:
        share = share_of(0, self.size, task.part, task.parts)
        return {"first": share.start, "until": share.stop}

    def build_update(self, done: FinishedWork, progress: TaskProgress) -> ServerUpdate:
        batch, part, parts = done.piece
        share = share_of(batch * self.size, self.size, part, parts)
        facts = {key: sum(fact[key] for fact in done.facts) for key in ("likelihood", "impossible")}
        ends = (progress.samples + len(share)) // self.size > progress.step
        return ServerUpdate(
            number=progress.version + 1,
            batch=batch,
            part=part,
            parts=parts,
            tasks=done.tasks,
            first=share.start,
            until=share.stop,
            stale=progress.version - min(fact["version"] for fact in done.facts),
            train_s=progress.train_s,
            more={**facts, "ends": ends, "kept": self._part.kept(parts)},
        )

    def on_committed(self, update: ServerUpdate, replies: Sequence[dict[str, Any]], _seconds: float) -> None:
        self._stale[update.stale] += 1
        if not update.more["ends"]:
            return
        tokens, config = self._reporter.text.tokens, self.run.job.model.hmm
        likelihood = likelihood_of(replies[0]["likelihood"], self._bits)
        prior = log_prior_of([row for one in replies for row in one.get("prior", ())], config.smoothing)
        seconds, self._began_s = max(update.train_s - self._began_s, 1e-9), update.train_s
        ascent = ascended(
            self.state, objective=likelihood + prior, tokens=tokens, seconds=seconds,
            min_gain=config.min_gain, time_s=self.run.time_s,
        )  # fmt: skip
        self.state = ascent.state
        self._primary.shard.note({"notes": {"state": asdict(self.state)}})
        primary, workers = self._primary, max(1, self._primary.workers)
        more = {"bytes_sent": primary.bytes_sent, "staleness": update.stale, "updates": update.parts}
        self._reporter.emit_step(self.run, ascent, -likelihood / tokens, seconds, workers, **more)
        self._reporter.emit_end(ascent, replies[0]["impossible"])

    def at_boundary(self, stopped: Callable[[], bool]) -> bool:
        if self._requests.at_boundary(self.state.step, stopped):
            return False
        step = self.state.step
        if step > self._evaluated_at and not self.over and step % self.run.evaluate_every == 0:
            self._evaluated_at = step
            self._evaluate(self.run.evaluate_sequences)
        if step and not self.over and (step % self.run.checkpoint_every == 0 or self._primary.shard.due):
            try:
                self._save()
            except StoreFailed as failure:
                self.record.emit("warning", message=failure.message)
        return True

    def stop(self, *, left: int) -> None:
        if not left:
            self._save()
        self.record.emit("stopped", step=self.state.step, steps=self.run.steps)

    def finish(self) -> None:
        self._save()
        result = self._evaluate(self.run.final_sequences)
        staleness = {str(stale): count for stale, count in sorted(self._stale.items())}
        traffic = {"bytes_sent": self._primary.bytes_sent, "bytes_received": self._primary.bytes_received}
        updates = self._stale.total()
        self._reporter.export(
            self._weights, self.state, result, updates=updates, staleness=staleness, **traffic
        )

    def end(self) -> None:
        """Nothing to close."""

    @property
    def _weights(self) -> HmmWeights:
        return assembled(self._primary.gathered())

    def _evaluate(self, sequences: int | None) -> Any:
        return self._reporter.evaluate(self._weights, self.state.step, sequences)

    def _save(self) -> None:
        if self._primary.shard.base.step == self.state.step > 0:
            return
        self._primary.save(State(self.state.step, self._primary.samples, self._primary.train_s))

    def _write(self, _state: State, weights: HmmWeights) -> Path:
        self._part.saves.save(weights, self.state)
        return committed(self._folder / CHECKPOINTS)[-1]
