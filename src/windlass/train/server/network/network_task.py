"""A network on servers: what a trainer does between batches, done by the first server at borders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.corpus.batches import share_of
from windlass.corpus.corpus_dir import load_corpus
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
from windlass.train.server.network.commit_order import CommitOrder
from windlass.train.server.network.events import Teller, tell_start
from windlass.train.server.network.settings_requests import ServerSettings
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.task import TaskProgress
from windlass.train.server.updates import ServerUpdate, digest_of
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask

EPSILON = 1e-6


class NetworkCourse:
    """What the first server decides about a network."""

    squared = True

    def __init__(self, run: Run, folder: Path, record: EventLog, chief: PrimaryServer) -> None:
        self.planned = self.run = run
        self.folder, self.record, self._chief = folder, record, chief
        self.size = run.batch_sequences
        self._corpus = load_corpus(Path(run.corpus))
        self._objective = build_objective(run, self._corpus)
        self._look_sequences: int | None = None
        self._book, self._requests = (
            CommitOrder(record, folder, run.batch_sequences),
            ServerSettings(folder, record),
        )
        self._looked_at = self._saved_at = -1

    def begin(self, base: State, updates: Sequence[ServerUpdate], passed_over: Sequence[str]) -> None:
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        self._looked_at, self._saved_at = base.step, base.step if base.step else -1
        tell_start(self)
        self._requests.begin(self)
        if self.step or updates:
            self._tell_resumed(source="log" if updates else "checkpoint")
        self._book.begin(base.samples, updates)
        self._teller = Teller(self)

    @property
    def sync(self) -> Sync:
        return self.run.job.sync

    @property
    def over(self) -> bool:
        return self.step >= self.run.steps and self._chief.quiet  # fewer steps may be planned meanwhile

    @property
    def waiting(self) -> bool:
        return self._requests.waiting

    @property
    def step(self) -> int:
        return self._chief.step

    @property
    def saved_step(self) -> int:
        return self._chief.shard.base.step

    @property
    def workers(self) -> int:
        return self._chief.workers

    @property
    def bytes_sent(self) -> int:
        return self._chief.bytes_sent

    def limit(self, step: int) -> int:
        run = self.run
        later = [every * (step // every + 1) for every in (run.evaluate_every, run.checkpoint_every)]
        return min(run.steps, *later)

    def aligned(self, step: int) -> int:
        return step

    def parts(self, workers: int) -> int:
        return workers

    def order(self, task: WorkerTask) -> Facts:
        if task.kind == "look":
            return {"sequences": self._look_sequences}
        share = share_of(task.batch * self.size, self.size, task.part, task.parts)
        micro = self.run.micro_batch_sequences
        return {"first": share.start, "until": share.stop, "micro": micro, "ahead": self._ahead}

    def draw_up(self, done: FinishedWork, standing: TaskProgress) -> ServerUpdate:
        update = drawn_up(done, self.run, standing)
        check_finite(update)
        return update

    def entered(self, update: ServerUpdate, _told: Sequence[dict[str, Any]], seconds: float) -> None:
        self._book.ledger.spend("compute", seconds)
        self._book.enter(update)
        self._teller.tell(update, seconds)
        self._replan()

    def border(self, stopped: Callable[[], bool]) -> bool:
        if not self._requests.take(self, stopped):
            return False
        run, step = self.run, self.step
        if step < run.steps and step % run.evaluate_every == 0 and step > max(0, self._looked_at):
            self._evaluate(run.evaluate_sequences)
        due = self._chief.shard.due or step % run.checkpoint_every == 0
        if 0 < step < run.steps and due and step > self._saved_at:
            try:
                self._save()
            except StoreFailed as failure:
                self.record.tell("checkpoint_failed", step=step, tier="local", message=failure.message)
                self._saved_at = step
        return True

    def stop(self, *, left: int) -> None:
        """Save where nothing is half done; else the logs keep it."""
        if left:
            message = f"{left} batches were begun and no worker is left to end them"
            self.record.tell("warning", message=message)
        elif self.step > self._saved_at:
            self._save()
        self.record.tell("stopped", step=self.step, steps=self.run.steps)

    def finish(self) -> None:
        result = self._evaluate(self.run.final_sequences)
        source = CheckpointReader(self._save())
        path = save_result(self.folder, self.run, source, self._corpus, result)
        chief = self._chief
        self.record.tell(
            "finished",
            step=self.step,
            train_s=round(chief.train_s, 2),
            updates=self._book.updates,
            bytes_sent=chief.bytes_sent,
            bytes_received=chief.bytes_received,
            staleness={str(stale): count for stale, count in sorted(self._book.stale.items())},
            model=str(path),
            durable=True,
        )

    def end(self) -> None:
        self._book.ledger.write(durable=True)

    def follow_plan(self, planned: Run, run: Run) -> None:
        """Go on by another plan, and as the run was asked to."""
        self.planned, self.run = planned, run

    @property
    def _ahead(self) -> int:
        """How many updates will come before a gradient that is begun now: as many as lately."""
        return round(self._book.lately) if self.sync.foresee and self.sync.mode != "synchronous" else 0

    def _replan(self) -> None:
        """With a time budget, correct the number of steps by what the steps really take."""
        planned = replanned(self.planned, self.step, self._chief.train_s) if self.step else self.planned
        if planned is not self.planned:
            before = self.planned.steps
            self.record.tell("replanned", step=self.step, steps_before=before, steps=planned.steps)
            self._requests.follow(self, planned)
            save_length(self.folder, planned)

    def _evaluate(self, sequences: int | None) -> Evaluation:
        """Let workers measure on held-out text, each a part of it."""
        begin, self._looked_at, self._look_sequences = time.perf_counter(), self.step, sequences
        done = self._chief.look()
        summed = math.fsum(float.fromhex(fact["summed"]) for fact in done.facts)
        seen = int(done.facts[0]["sequences"])
        part, context = self._corpus.validation, self.run.network.context
        result = measured(summed, seen, part, self._objective, context)
        self._book.ledger.spend("evaluation", time.perf_counter() - begin)
        self.record.tell("evaluation", step=self.step, **asdict(result))
        self.record.plot(
            self.step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        for text in done.facts[0]["texts"]:
            self.record.tell("sample", step=self.step, text=text)
            self.record.plot_text(self.step, "sample", text)
        return result

    def _save(self) -> Path:
        begin, chief = time.perf_counter(), self._chief
        self._book.ledger.write(durable=True)  # no checkpoint may know of samples that the ledger does not
        path = chief.save(State(self.step, chief.samples, chief.train_s))
        self._saved_at = self.step
        self._book.ledger.spend("checkpoint", time.perf_counter() - begin)
        return path

    def _tell_resumed(self, source: str) -> None:
        layout, samples = str(self.run.layout), self._chief.samples
        self.record.tell(
            "resumed", step=self.step, samples=samples, generation=0, layout=layout, source=source
        )


def drawn_up(done: FinishedWork, run: Run, standing: TaskProgress) -> ServerUpdate:
    """Return the update that follows, of one part of a batch or of all its parts."""
    size, (batch, part, parts) = run.batch_sequences, done.piece
    share = share_of(batch * size, size, part, parts)
    stale = standing.version - min(fact["version"] for fact in done.facts)
    norm = float(done.facts[0]["norm"]) if standing.square is None else math.sqrt(standing.square)
    most = run.job.train.clip or math.inf
    rate = rate_of(run, standing.step) * math.sqrt(len(share) / size)
    return ServerUpdate(
        number=standing.version + 1,
        batch=batch,
        part=part,
        parts=parts,
        tasks=done.tasks,
        first=share.start,
        until=share.stop,
        rate=rate / (1 + run.job.sync.damping * stale),
        shrink=None if standing.square is None else min(1.0, most / (norm + EPSILON)),
        norm=norm,
        loss=sum(fact["loss"] for fact in done.facts),
        digest=digest_of(fact["digest"] for fact in done.facts),
        stale=stale,
        train_s=standing.train_s,
        more={"before": standing.samples},
    )


def check_finite(update: ServerUpdate) -> None:
    """Refuse an update that would ruin the weights."""
    if math.isfinite(update.loss) and math.isfinite(update.norm):
        return
    raise WindlassError(
        f"update {update.number}: the loss is {update.loss}, its gradient {update.norm}",
        hint=f"lower [train] learning_rate (it was {update.rate:.3g}) or lengthen warmup_steps",
    )
