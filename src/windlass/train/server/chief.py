"""The first server: hands out batches, commits updates, and does at borders what a trainer does there.

    await a batch that is complete -> commit it on all servers -> at a border: take requests, evaluate, save

`loop` is that, in the main thread. Threads of the hall bring in what workers say (`hello`, `next`, `gone`);
all of them share one lock, and wake each other through it.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from windlass.corpus.batches import share_of
from windlass.corpus.built import load_corpus
from windlass.spec.errors import StoreFailed
from windlass.spec.run import Run
from windlass.train.assemble import Assembled
from windlass.train.checkpoint import State
from windlass.train.evaluate import Evaluation, measured
from windlass.train.feed import build_objective
from windlass.train.loop import save_length
from windlass.train.record import Record
from windlass.train.replan import replanned
from windlass.train.result import save_result
from windlass.train.server.book import Book
from windlass.train.server.dispenser import Dispenser, Done, Facts, Task
from windlass.train.server.peers import CannotFollow, Peers, StarCrew, check_followed
from windlass.train.server.requests import Requests
from windlass.train.server.shard import Shard
from windlass.train.server.telling import Teller, tell_start, wanted_workers
from windlass.train.server.updates import Update, check_finite, drawn_up

Outcome = Literal["finished", "stopped"]

LOOK_EVERY_S = 0.1
DRAIN_S = 20.0
"""For workers to finish what they began, when the run shall stop."""
CLOSE_S = 30.0
SAVE_TIMES = 3
LATE_S, LATE_FACTOR, FIRST_TASK_S, REMEMBERED = 30.0, 10.0, 600.0, 64
"""A task is given to another worker after so long at least, and so many times the longest of the last ones;
the first of a run may have to compile the model."""


class Chief:
    """What the first server decides."""

    def __init__(self, run: Run, folder: Path, record: Record, shard: Shard) -> None:
        self.planned = self.run = run
        self.folder, self.record, self._shard = folder, record, shard
        self._corpus = load_corpus(Path(run.corpus))
        self._objective = build_objective(run, self._corpus)
        self._life = secrets.token_hex(4)
        self._bell = threading.Condition()
        self._ready: list[Done] = []
        self._worker = 0
        self._over = False
        self._look_sequences: int | None = None
        self._book, self._requests = Book(record, folder, run.batch_sequences), Requests(folder, record)
        self._ledger = self._book.ledger
        self._updates: list[Update] = []
        """Those since the last checkpoint."""
        self.bytes_sent = self.bytes_received = 0
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        self._looked_at = self._saved_at = -1
        self._peers = Peers(folder, run.job.sync.servers, self._life, self._missed)

    def begin(self) -> None:
        """Take up the run where this server stands, before anybody is let in."""
        updates, passed_over = self._shard.restore()
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        base, step = self._shard.base, self.step
        self._updates, self._looked_at = updates, base.step
        self._saved_at = base.step if base.step else -1
        self._shard.drop(self._shard.staged())  # whoever computed them will hear that nobody waits for them
        self.train_s = updates[-1].train_s if updates else base.train_s
        tell_start(self)
        self._requests.begin(self)
        if step:
            self._tell_resumed(step)
        self._dispenser = Dispenser(
            self.run.job.sync, self._life, committed=[update.batch for update in updates], first=base.step
        )
        self._dispenser.committed = step
        self._book.begin(step, updates)
        self._since = time.perf_counter()

    @property
    def step(self) -> int:
        """Updates that were committed."""
        return self._shard.version

    @property
    def workers(self) -> int:
        with self._bell:
            return self._dispenser.workers

    @property
    def saved_step(self) -> int:
        return self._shard.base.step

    def hello(self) -> int:
        """Let a worker in, and return its number."""
        with self._bell:
            self._worker += 1
            self._dispenser.join(self._worker)
            self._bell.notify_all()
            return self._worker

    def next(self, worker: int, told: Facts | None) -> Facts:
        """Take what a worker has done and return what it shall do next."""
        with self._bell:
            if told is not None:
                self._take(worker, told)
            while not self._over:
                task = self._dispenser.ask(worker, time.monotonic())
                if task is not None:
                    return self._order(task)
                self._bell.wait()
            return {"kind": "end"}

    def gone(self, worker: int) -> None:
        """A worker left or died: what it had not finished is for others."""
        with self._bell:
            self._dispenser.leave(worker)
            self._bell.notify_all()

    def loop(self, stopped: Callable[[], bool]) -> Outcome:
        """Go on until the run is over or shall stop."""
        self._teller, asked_at = Teller(self), math.inf
        self._let_go()
        while self.step < self.run.steps:
            asked = stopped() or self._requests.waiting
            asked_at = min(asked_at, time.monotonic()) if asked else math.inf
            if asked or self._shard.due:
                self._begin_no_more()
            if self.step == self._dispenser.limit:
                if not self._border(stopped):
                    return self._stop()
                self._let_go()
                continue
            done = self._await()
            if done is not None:
                self._commit(done)
            elif stopped() and time.monotonic() - asked_at > DRAIN_S:
                return self._stop()
            else:
                self._pass_over_the_late()
        self._finish()
        return "finished"

    def end(self) -> None:
        """Let workers go, and close everything."""
        with self._bell:
            self._over = True
            self._bell.notify_all()
        self._ledger.write(durable=True)
        self._peers.close()
        self._shard.close(CLOSE_S)

    def follow_plan(self, planned: Run, run: Run) -> None:
        """Go on by another plan, and as the run was asked to."""
        self.planned, self.run = planned, run

    def _take(self, worker: int, told: Facts) -> None:
        self.bytes_sent += told.pop("sent")
        self.bytes_received += told.pop("received")
        self._took_s.append(float(told.pop("took_s")))
        done = self._dispenser.finish(worker, told.pop("task"), told)
        if done is not None:
            self._ready.append(done)
            self._bell.notify_all()

    def _order(self, task: Task) -> Facts:
        size = self.run.batch_sequences
        if task.kind == "look":
            return {**asdict(task), "sequences": self._look_sequences}
        share = share_of(task.batch * size, size, task.part, task.parts)
        micro = self.run.micro_batch_sequences
        known = {"micro": micro, "step": self.step, "ahead": self._ahead}
        return {**asdict(task), "first": share.start, "until": share.stop, **known}

    @property
    def _ahead(self) -> int:
        """How many updates will come before a gradient that is begun now: as many as lately."""
        sync = self.run.job.sync
        return round(self._book.lately) if sync.foresee and sync.mode != "synchronous" else 0

    def _let_go(self) -> None:
        """Let batches be handed out up to the next border."""
        run = self.run
        later = [every * (self.step // every + 1) for every in (run.evaluate_every, run.checkpoint_every)]
        with self._bell:
            self._dispenser.sync = run.job.sync
            self._dispenser.limit = max(self._dispenser.begun, min(run.steps, *later))
            self._divide()
            self._bell.notify_all()

    def _begin_no_more(self) -> None:
        """Let there be a border as soon as everything that was begun is committed."""
        with self._bell:
            self._dispenser.limit = self._dispenser.begun

    def _divide(self) -> None:
        """Divide batches among as many workers as are wanted, however many are there at the moment."""
        self._dispenser.parts = wanted_workers(self.folder) or self.run.layout.dp

    def _await(self, seconds: float = LOOK_EVERY_S) -> Done | None:
        """Wait for a batch, or a look, that is complete."""
        with self._bell:
            if not self._ready:
                self._bell.wait(seconds)
            return self._ready.pop(0) if self._ready else None

    def _pass_over_the_late(self) -> None:
        """Give to others what a worker has had for far longer than anybody ever needed."""
        with self._bell:
            longest_s = max(self._took_s, default=FIRST_TASK_S / LATE_FACTOR)
            before_s = time.monotonic() - max(LATE_S, LATE_FACTOR * longest_s)
            for worker in self._dispenser.late(before_s):
                self._dispenser.leave(worker)
                self._bell.notify_all()
                message = f"worker number {worker} is late: others do what it was given"
                self.record.tell("warning", message=message)

    def _commit(self, done: Done) -> None:
        """Let an update happen: written down here first, then on all servers."""
        with self._bell:
            dropped, self._dispenser.dropped = self._dispenser.dropped, []
        square = self._square(done.tasks) if len(done.tasks) > 1 else None
        train_s = self.train_s + time.perf_counter() - self._since
        update = drawn_up(done, self.run, step=self.step, square=square, train_s=train_s)
        check_finite(update)
        self._shard.drop(dropped)
        self._shard.commit(update)
        self._updates.append(update)
        self._heed(self._peers.ask_all(do="commit", update=asdict(update), drop=dropped))
        now = time.perf_counter()
        seconds, self._since, self.train_s = now - self._since, now, update.train_s
        self._ledger.spend("compute", seconds)
        self._book.enter(update)
        self._teller.tell(update, seconds)
        self._replan()
        with self._bell:
            self._divide()
            self._dispenser.committed = update.number
            self._bell.notify_all()

    def _square(self, tasks: Sequence[str]) -> float:
        """Return the square of the norm of the sum of some gradients, over all servers."""
        answers = self._heed(self._peers.ask_all(do="square", tasks=tasks))
        return self._shard.square(tasks) + math.fsum(answer["square"] for answer in answers)

    def _heed(self, answers: list[Facts]) -> list[Facts]:
        for number, answer in enumerate(answers, start=1):
            check_followed(number, answer)
        return answers

    def _missed(self, version: int) -> list[Update]:
        """Return the updates after the first `version`, for a server that stands there."""
        if not self._shard.base.step <= version <= self.step:
            raise CannotFollow(f"a server stands at update {version}, the run at {self.step}")
        return [update for update in self._updates if update.number > version]

    def _replan(self) -> None:
        """With a time budget, correct the number of steps by what the steps really take."""
        planned = replanned(self.planned, self.step, self.train_s)
        if planned is not self.planned:
            before = self.planned.steps
            self.record.tell("replanned", step=self.step, steps_before=before, steps=planned.steps)
            self._requests.follow(self, planned)
            save_length(self.folder, planned)

    def _border(self, stopped: Callable[[], bool]) -> bool:
        """Do what is due where all batches so far are committed; return whether to go on."""
        run, step = self.run, self.step
        if not self._requests.take(self, stopped):
            return False
        if step < run.steps and step % run.evaluate_every == 0 and step > max(0, self._looked_at):
            self._evaluate(run.evaluate_sequences)
        due = self._shard.due or step % run.checkpoint_every == 0
        if 0 < step < run.steps and due and step > self._saved_at:
            try:
                self._save()
            except StoreFailed as failure:
                self.record.tell("checkpoint_failed", step=step, tier="local", message=failure.message)
                self._saved_at = step
        self._since = time.perf_counter()
        return True

    def _evaluate(self, sequences: int | None) -> Evaluation:
        """Let workers measure on held-out text, each a part of it."""
        begin, self._looked_at = time.perf_counter(), self.step
        with self._bell:
            self._look_sequences = sequences
            self._dispenser.look(self.step, max(1, self._dispenser.workers))
            self._bell.notify_all()
        while (done := self._await()) is None:
            pass
        summed = math.fsum(float.fromhex(fact["summed"]) for fact in done.facts)
        seen = int(done.facts[0]["sequences"])
        part, context = self._corpus.validation, self.run.network.context
        result = measured(summed, seen, part, self._objective, context)
        self._ledger.spend("evaluation", time.perf_counter() - begin)
        self.record.tell("evaluation", step=self.step, **asdict(result))
        self.record.plot(
            self.step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        for text in done.facts[0]["texts"]:
            self.record.tell("sample", step=self.step, text=text)
            self.record.plot_text(self.step, "sample", text)
        return result

    def _save(self) -> Path:
        """Write a checkpoint with all servers; one that dies meanwhile is waited for, and all begin again."""
        begin, step = time.perf_counter(), self.step
        state = State(step, step * self.run.batch_sequences, self.train_s)
        self._ledger.write(durable=True)  # no checkpoint may know of samples that the ledger does not
        for _ in range(SAVE_TIMES):
            try:
                crew = self._peers.crew(state)
                path = self._save_with(crew, state)
            except ConnectionError as error:
                self.record.tell("warning", message=f"a server was lost while all saved: {error}")
                self._peers.close()
                continue
            self._updates, self._saved_at = [], step
            self._ledger.spend("checkpoint", time.perf_counter() - begin)
            return path
        raise StoreFailed(f"{self.folder}: the servers could not save together", hint="see logs/ of the run")

    def _save_with(self, crew: StarCrew, state: State) -> Path:
        try:
            path = self._shard.save(state, crew)
        except StoreFailed:
            crew.end()  # all have failed alike, and say that they are through
            raise
        crew.end()
        return path

    def _stop(self) -> Outcome:
        """Save where nothing is half done; else the logs keep it."""
        if self.step == self._dispenser.begun:
            if self.step > self._saved_at:
                self._save()
        else:
            left = self._dispenser.begun - self.step
            self.record.tell(
                "warning", message=f"{left} batches were begun and no worker is left to end them"
            )
        self.record.tell("stopped", step=self.step, steps=self.run.steps)
        return "stopped"

    def _finish(self) -> None:
        result = self._evaluate(self.run.final_sequences)
        source = Assembled(self._save())
        path = save_result(self.folder, self.run, source, self._corpus, result)
        self.record.tell(
            "finished",
            step=self.step,
            train_s=round(self.train_s, 2),
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            staleness={str(stale): count for stale, count in sorted(self._book.stale.items())},
            model=str(path),
            durable=True,
        )

    def _tell_resumed(self, step: int) -> None:
        self.record.tell(
            "resumed",
            step=step,
            samples=step * self.run.batch_sequences,
            generation=0,
            layout=str(self.run.layout),
            source="log" if self._updates else "checkpoint",
        )
