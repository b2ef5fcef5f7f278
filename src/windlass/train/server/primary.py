"""The first server: hands out batches, commits updates, and lets its course do what is due at borders.

    await what can be committed -> commit it on all servers -> at a border: whatever the course does there

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

from torch import Tensor

from windlass.spec.errors import StoreFailed
from windlass.train.checkpoint.async_save import State
from windlass.train.event_log import EventLog
from windlass.train.server.peers import CannotFollow, Peers, StarGroup, check_followed
from windlass.train.server.shard import ServerShard
from windlass.train.server.staff import wanted_workers
from windlass.train.server.task import ServerTask, TaskProgress
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.work_queue import BatchPart, Facts, FinishedWork, WorkerTask, WorkQueue

Outcome = Literal["finished", "stopped"]

LOOK_EVERY_S = 0.1
DRAIN_S = 20.0
"""For workers to finish what they began, when the run shall stop."""
CLOSE_S = 30.0
SAVE_TIMES = 3
LATE_S, LATE_FACTOR, FIRST_TASK_S, REMEMBERED = 30.0, 10.0, 600.0, 64
"""A task is given to another worker after so long at least, and so many times the longest of the last ones;
the first of a run may have to compile the model."""


class PrimaryServer:
    """What the first server decides."""

    def __init__(
        self, folder: Path, record: EventLog, shard: ServerShard, *, servers: int, workers: int
    ) -> None:
        """`workers` are those that the run was planned for, where nobody has asked for others."""
        self.folder, self.record, self.shard = folder, record, shard
        self._planned_workers = workers
        self._life = secrets.token_hex(4)
        self._bell = threading.Condition()
        self._ready: deque[FinishedWork] = deque()
        self._worker = 0
        self._over = False
        self._updates: list[ServerUpdate] = []
        """Those since the last checkpoint."""
        self.samples = 0
        """Positions that were committed."""
        self.bytes_sent = self.bytes_received = 0
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        self.train_s = 0.0
        self._peers = Peers(folder, shard.part.stage, servers, self._life, self._missed)

    def begin(self, course: ServerTask) -> None:
        """Take up the run where this server stands, before anybody is let in."""
        self.course = course
        updates, passed_over = self.shard.restore()
        base = self.shard.base
        self._updates = updates
        self.samples = base.samples + sum(update.positions for update in updates)
        self.train_s = updates[-1].train_s if updates else base.train_s
        self.shard.drop(self.shard.staged())  # whoever computed them will hear that nobody waits for them
        course.begin(base, updates, passed_over)
        pieces = [BatchPart(update.batch, update.part, update.parts) for update in updates]
        self._dispenser = WorkQueue(course.sync, self._life, committed=pieces, first=base.step)
        self._dispenser.committed = self.step
        self.since = time.perf_counter()

    @property
    def step(self) -> int:
        """Batches' worth of samples that were committed."""
        return self.samples // self.course.size

    @property
    def workers(self) -> int:
        with self._bell:
            return self._dispenser.workers

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        with self._bell:
            return self._dispenser.quiet and not self._ready

    def hello(self) -> int:
        """Let a worker in, and return its number."""
        with self._bell:
            self._worker += 1
            self._dispenser.join(self._worker)
            self._bell.notify_all()
            return self._worker

    def next(self, worker: int, told: Facts | None) -> Facts:
        """Take what a worker has done and return what it shall do next.

        What it pushed is committed before, if it can be: it never computes with values that lack its own.
        """
        with self._bell:
            if told is not None:
                done = self._take(worker, told)
                while done in self._ready and not self._over:
                    self._bell.wait()
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
        asked_at, course = math.inf, self.course
        if self.quiet and not course.over and not course.border(stopped):  # who died there may not have saved
            return self._stop()
        self._let_go()
        while not course.over:
            asked = stopped() or course.waiting
            asked_at = min(asked_at, time.monotonic()) if asked else math.inf
            if asked or self.shard.due:
                self._begin_no_more()
            if self._at_border:
                if not course.border(stopped):
                    return self._stop()
                self.since = time.perf_counter()
                self._let_go()
                continue
            done = self.await_done()
            if done is not None:
                self._commit(done)
            elif stopped() and time.monotonic() - asked_at > DRAIN_S:
                return self._stop()
            else:
                self._pass_over_the_late()
        course.finish()
        return "finished"

    def end(self) -> None:
        """Let workers go, and close everything."""
        with self._bell:
            self._over = True
            self._bell.notify_all()
        self.course.end()
        self._peers.close()
        self.shard.close(CLOSE_S)

    def look(self) -> FinishedWork:
        """Let workers look at held-out text, each at a part of it; at a border."""
        with self._bell:
            self._dispenser.look(self.step, max(1, self._dispenser.workers))
            self._bell.notify_all()
        while (done := self.await_done()) is None:
            self._pass_over_the_late()
        self._settle()
        return done

    def save(self, state: State) -> Path:
        """Write a checkpoint with all servers; one that dies meanwhile is waited for, and all begin again."""
        for _ in range(SAVE_TIMES):
            try:
                path = self._save_with(self._peers.crew(state), state)
            except ConnectionError as error:
                self.record.tell("warning", message=f"a server was lost while all saved: {error}")
                self._peers.close()
                continue
            self._updates = []
            return path
        raise StoreFailed(f"{self.folder}: the servers could not save together", hint="see logs/ of the run")

    def gathered(self) -> list[dict[str, Tensor]]:
        """Return all that the servers hold, one dictionary of arrays for each."""
        return [self.shard.pull({})[1], *(frame.arrays for frame in self._peers.frames(do="pull"))]

    def await_done(self, seconds: float = LOOK_EVERY_S) -> FinishedWork | None:
        """Wait for what can be committed, or for a look that is complete."""
        with self._bell:
            if not self._ready:
                self._bell.wait(seconds)
            return self._ready[0] if self._ready else None

    @property
    def _at_border(self) -> bool:
        with self._bell:
            return self.step == self._dispenser.limit and self._dispenser.quiet

    def _take(self, worker: int, told: Facts) -> FinishedWork | None:
        self.bytes_sent += told.pop("sent")
        self.bytes_received += told.pop("received")
        self._took_s.append(float(told.pop("took_s")))
        done = self._dispenser.finish(worker, told.pop("task"), told)
        if done is not None:
            self._ready.append(done)
            self._bell.notify_all()
        return done

    def _order(self, task: WorkerTask) -> Facts:
        known = {"stamp": self.shard.stamp, "mode": self.course.sync.mode}
        return {**asdict(task), **known, **self.course.order(task)}

    def _let_go(self) -> None:
        """Let batches be handed out up to the next border."""
        with self._bell:
            self._dispenser.limit = max(self._dispenser.begun, self.course.limit(self.step))
            self._dispenser.sync = self.course.sync
            self._divide()
            self._bell.notify_all()

    def _begin_no_more(self) -> None:
        """Let there be a border as soon as everything that was begun is committed."""
        with self._bell:
            self._dispenser.limit = self.course.aligned(self._dispenser.begun)

    def _divide(self) -> None:
        """Divide batches among as many workers as are wanted, however many are there at the moment."""
        wanted = wanted_workers(self.folder) or self._planned_workers
        self._dispenser.parts = max(1, min(self.course.size, self.course.parts(wanted)))

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

    def _commit(self, done: FinishedWork) -> None:
        """Let an update happen: written down here first, then on all servers."""
        with self._bell:
            dropped, self._dispenser.dropped = self._dispenser.dropped, []
        square = self._square(done.tasks) if self.course.squared and len(done.tasks) > 1 else None
        train_s = self.train_s + time.perf_counter() - self.since
        standing = TaskProgress(self.shard.version, self.samples, self.step, square, train_s)
        update = self.course.draw_up(done, standing)
        self.shard.drop(dropped)
        told = [self.shard.commit(update)]
        self._updates.append(update)
        told += self._heed(self._peers.ask_all(do="commit", update=asdict(update), drop=dropped))
        self.samples += update.positions
        now = time.perf_counter()
        seconds, self.since, self.train_s = now - self.since, now, update.train_s
        self.course.entered(update, told, seconds)
        self._settle()

    def _settle(self) -> None:
        """What came first is done with: whoever waits for it goes on."""
        with self._bell:
            self._dispenser.settle(self._ready.popleft())
            self._divide()
            self._dispenser.committed = self.step
            self._bell.notify_all()

    def _square(self, tasks: Sequence[str]) -> float:
        """Return the square of the norm of the sum of some gradients, over all servers."""
        answers = self._heed(self._peers.ask_all(do="square", tasks=tasks))
        return self.shard.square(tasks) + math.fsum(answer["square"] for answer in answers)

    def _heed(self, answers: list[Facts]) -> list[Facts]:
        for number, answer in enumerate(answers, start=1):
            check_followed(number, answer)
        return answers

    def _missed(self, stamp: Sequence[int]) -> list[ServerUpdate]:
        """Return the updates after those of a server that stands there."""
        base, version = stamp
        followed = base == self.shard.base.step or version == self.shard.base.step
        if not followed or not self.shard.base.step <= version <= self.shard.version:
            raise CannotFollow(f"a server stands at update {version}, the run at {self.shard.version}")
        return [update for update in self._updates if update.number > version]

    def _save_with(self, crew: StarGroup, state: State) -> Path:
        try:
            path = self.shard.save(state, crew)
        except StoreFailed:
            crew.end()  # all have failed alike, and say that they are through
            raise
        crew.end()
        return path

    def _stop(self) -> Outcome:
        self.course.stop(left=0 if self._dispenser.quiet else self._dispenser.begun - self.step)
        return "stopped"
