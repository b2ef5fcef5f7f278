"""The primary's side of training a network on servers: evaluation, saving and settings at boundaries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.corpus.batches import share_of
from windlass.corpus.corpus_dir import load_corpus
from windlass.parallel.process_group import SingleProcess
from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.run import Run
from windlass.spec.sync import Sync
from windlass.train.checkpoint.async_save import State
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.data_loader import build_objective
from windlass.train.evaluate import Evaluation, measured
from windlass.train.event_log import EventLog
from windlass.train.loop import save_length
from windlass.train.optimize import rate_of
from windlass.train.replan import replanned
from windlass.train.result import save_result
from windlass.train.runtime_settings import RuntimeSettings
from windlass.train.server.network.commit_order import CommitOrder
from windlass.train.server.network.events import StepReporter, emit_start
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.task import TaskProgress
from windlass.train.server.updates import ServerUpdate, digest_of
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask

EPSILON = 1e-6


class NetworkTask:
    """The primary's side of training a network."""

    needs_norm = True

    def __init__(self, run: Run, folder: Path, record: EventLog, primary: PrimaryServer) -> None:
        self.folder, self.record, self._primary = folder, record, primary
        self._requests = RuntimeSettings(run, folder, record, SingleProcess())
        self.size = run.batch_sequences
        self._corpus = load_corpus(Path(run.corpus))
        self._objective = build_objective(run, self._corpus)
        self._eval_sequences: int | None = None
        self._commits = CommitOrder(record, folder, run.batch_sequences)
        self._evaluated_at = self._saved_at = -1

    def begin(self, base: State, updates: Sequence[ServerUpdate], skipped: Sequence[str]) -> None:
        for reason in skipped:
            self.record.emit("warning", message=f"checkpoint skipped: {reason}")
        self._evaluated_at, self._saved_at = base.step, base.step if base.step else -1
        emit_start(self)
        self._requests.apply_newest(self.step)
        if self.step or updates:
            self._emit_resumed(source="log" if updates else "checkpoint")
        self._commits.begin(base.samples, updates)
        self._reporter = StepReporter(self)

    @property
    def run(self) -> Run:
        """The run with the settings in force."""
        return self._requests.run

    @property
    def sync(self) -> Sync:
        return self.run.job.sync

    @property
    def over(self) -> bool:
        return self.step >= self.run.steps and self._primary.quiet  # fewer steps may be planned meanwhile

    @property
    def waiting(self) -> bool:
        return self._requests.waiting

    @property
    def step(self) -> int:
        return self._primary.step

    @property
    def saved_step(self) -> int:
        return self._primary.shard.base.step

    @property
    def workers(self) -> int:
        return self._primary.workers

    @property
    def bytes_sent(self) -> int:
        return self._primary.bytes_sent

    def limit(self, step: int) -> int:
        run = self.run
        later = [every * (step // every + 1) for every in (run.evaluate_every, run.checkpoint_every)]
        return min(run.steps, *later)

    def aligned(self, step: int) -> int:
        return step

    def parts(self, workers: int) -> int:
        return workers

    def order(self, task: WorkerTask) -> Facts:
        if task.kind == "evaluate":
            return {"sequences": self._eval_sequences}
        share = share_of(task.batch * self.size, self.size, task.part, task.parts)
        micro = self.run.micro_batch_sequences
        return {"first": share.start, "until": share.stop, "micro": micro, "ahead": self._ahead}

    def build_update(self, done: FinishedWork, progress: TaskProgress) -> ServerUpdate:
        update = make_update(done, self.run, progress)
        check_finite(update)
        return update

    def on_committed(self, update: ServerUpdate, _replies: Sequence[dict[str, Any]], seconds: float) -> None:
        self._commits.ledger.spend("compute", seconds)
        self._commits.enter(update)
        self._reporter.on_update(update, seconds)
        self._replan()

    def at_boundary(self, stopped: Callable[[], bool]) -> bool:
        if self._requests.at_boundary(self.step, stopped):
            return False
        run, step = self.run, self.step
        if step < run.steps and step % run.evaluate_every == 0 and step > max(0, self._evaluated_at):
            self._evaluate(run.evaluate_sequences)
        due = self._primary.shard.due or step % run.checkpoint_every == 0
        if 0 < step < run.steps and due and step > self._saved_at:
            try:
                self._save()
            except StoreFailed as failure:
                self.record.emit("checkpoint_failed", step=step, tier="local", message=failure.message)
                self._saved_at = step
        return True

    def stop(self, *, left: int) -> None:
        """Save if no batch is half done; otherwise the logs keep the state."""
        if left:
            message = f"{left} batches were begun, and no worker is left to finish them"
            self.record.emit("warning", message=message)
        elif self.step > self._saved_at:
            self._save()
        self.record.emit("stopped", step=self.step, steps=self.run.steps)

    def finish(self) -> None:
        result = self._evaluate(self.run.final_sequences)
        source = CheckpointReader(self._save())
        path = save_result(self.folder, self.run, source, self._corpus, result)
        primary = self._primary
        self.record.emit(
            "finished",
            step=self.step,
            train_s=round(primary.train_s, 2),
            updates=self._commits.updates,
            bytes_sent=primary.bytes_sent,
            bytes_received=primary.bytes_received,
            staleness={str(stale): count for stale, count in sorted(self._commits.stale.items())},
            model=str(path),
            durable=True,
        )

    def end(self) -> None:
        self._commits.ledger.write(durable=True)

    @property
    def _ahead(self) -> int:
        """Estimated number of updates before a gradient that is begun now is applied."""
        return round(self._commits.lately) if self.sync.foresee and self.sync.mode != "synchronous" else 0

    def _replan(self) -> None:
        """With a time budget, adjust the number of steps to their measured duration."""
        before = self._requests.planned
        planned = replanned(before, self.step, self._primary.train_s) if self.step else before
        if planned is not before:
            self.record.emit("replanned", step=self.step, steps_before=before.steps, steps=planned.steps)
            self._requests.follow_plan(planned)
            save_length(self.folder, planned)

    def _evaluate(self, sequences: int | None) -> Evaluation:
        """Let the workers evaluate held-out text, each a part of it."""
        begin, self._evaluated_at, self._eval_sequences = time.perf_counter(), self.step, sequences
        done = self._primary.evaluate()
        summed = math.fsum(float.fromhex(fact["summed"]) for fact in done.facts)
        seen = int(done.facts[0]["sequences"])
        part, context = self._corpus.validation, self.run.network.context
        result = measured(summed, seen, part, self._objective, context)
        self._commits.ledger.spend("evaluation", time.perf_counter() - begin)
        self.record.emit("evaluation", step=self.step, **asdict(result))
        self.record.plot(
            self.step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        for text in done.facts[0]["texts"]:
            self.record.emit("sample", step=self.step, text=text)
            self.record.plot_text(self.step, "sample", text)
        return result

    def _save(self) -> Path:
        begin, primary = time.perf_counter(), self._primary
        self._commits.ledger.write(
            durable=True
        )  # before the checkpoint, which must not be ahead of the ledger
        path = primary.save(State(self.step, primary.samples, primary.train_s))
        self._saved_at = self.step
        self._commits.ledger.spend("checkpoint", time.perf_counter() - begin)
        return path

    def _emit_resumed(self, source: str) -> None:
        layout, samples = str(self.run.layout), self._primary.samples
        self.record.emit(
            "resumed", step=self.step, samples=samples, generation=0, layout=layout, source=source
        )


def make_update(done: FinishedWork, run: Run, progress: TaskProgress) -> ServerUpdate:
    """Return the next update, from one part of a batch or from all its parts."""
    size, (batch, part, parts) = run.batch_sequences, done.piece
    share = share_of(batch * size, size, part, parts)
    stale = progress.version - min(fact["version"] for fact in done.facts)
    norm = float(done.facts[0]["norm"]) if progress.square is None else math.sqrt(progress.square)
    max_norm = run.job.train.clip or math.inf
    rate = rate_of(run, progress.step) * math.sqrt(len(share) / size)
    return ServerUpdate(
        number=progress.version + 1,
        batch=batch,
        part=part,
        parts=parts,
        tasks=done.tasks,
        first=share.start,
        until=share.stop,
        rate=rate / (1 + run.job.sync.damping * stale),
        shrink=None if progress.square is None else min(1.0, max_norm / (norm + EPSILON)),
        norm=norm,
        loss=sum(fact["loss"] for fact in done.facts),
        digest=digest_of(fact["digest"] for fact in done.facts),
        stale=stale,
        train_s=progress.train_s,
        more={"before": progress.samples},
    )


def check_finite(update: ServerUpdate) -> None:
    """Raise an error for an update with a loss or gradient norm that is not finite."""
    if math.isfinite(update.loss) and math.isfinite(update.norm):
        return
    raise WindlassError(
        f"update {update.number}: the loss is {update.loss}, its gradient {update.norm}",
        hint=f"lower [train] learning_rate (it was {update.rate:.3g}) or lengthen warmup_steps",
    )
