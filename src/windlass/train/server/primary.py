"""The primary (server 0): hands out batches, commits updates, and calls its task at boundaries.

    wait for finished work -> commit it on all servers -> at a boundary: evaluate, save, apply settings

`loop` does this in the main thread. Threads of the RPC server call `join`, `next_task` and `leave` for
workers; all threads share one condition variable.
"""

from __future__ import annotations

import json
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
from windlass.spec.protocol.elastic import WORKERS
from windlass.train.checkpoint.async_save import State
from windlass.train.event_log import EventLog
from windlass.train.server.peers import CannotFollow, Peers, StarGroup, check_followed
from windlass.train.server.shard import ServerShard
from windlass.train.server.task import ServerTask, TaskProgress
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.work_queue import BatchPart, Facts, FinishedWork, WorkerTask, WorkQueue

Outcome = Literal["finished", "stopped"]

POLL_EVERY_S = 0.1
DRAIN_S = 20.0
"""Time for workers to finish their tasks after a stop request."""
CLOSE_S = 30.0
SAVE_TIMES = 3
LATE_S, LATE_FACTOR, FIRST_TASK_S, REMEMBERED = 30.0, 10.0, 600.0, 64
"""A task is reassigned after max(LATE_S, LATE_FACTOR times the longest of the last REMEMBERED tasks).
FIRST_TASK_S is the limit for the first task, which may have to compile the model."""


class PrimaryServer:
    """Hands out tasks and commits updates."""

    def __init__(
        self, folder: Path, record: EventLog, shard: ServerShard, *, servers: int, workers: int
    ) -> None:
        """`workers` is the planned number, used until a user requests another."""
        self.folder, self.record, self.shard = folder, record, shard
        self._planned_workers = workers
        self._life = secrets.token_hex(4)
        self._condition = threading.Condition()
        self._ready: deque[FinishedWork] = deque()
        self._worker = 0
        self._over = False
        self._updates: list[ServerUpdate] = []
        """Updates since the last checkpoint."""
        self.samples = 0
        """Committed positions."""
        self.bytes_sent = self.bytes_received = 0
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        self.train_s = 0.0
        self._peers = Peers(folder, shard.part.stage, servers, self._life, self._missed)

    def begin(self, task: ServerTask) -> None:
        """Restore the run from the checkpoint and the log, before workers may join."""
        self.task = task
        updates, skipped = self.shard.restore()
        base = self.shard.base
        self._updates = updates
        self.samples = base.samples + sum(update.positions for update in updates)
        self.train_s = updates[-1].train_s if updates else base.train_s
        self.shard.drop(self.shard.staged())  # their tasks are unknown to the new queue
        task.begin(base, updates, skipped)
        pieces = [BatchPart(update.batch, update.part, update.parts) for update in updates]
        self._queue = WorkQueue(task.sync, self._life, committed=pieces, first=base.step)
        self._queue.committed = self.step
        self.since = time.perf_counter()

    @property
    def step(self) -> int:
        """Number of committed samples in batches."""
        return self.samples // self.task.size

    @property
    def workers(self) -> int:
        with self._condition:
            return self._queue.workers

    @property
    def wanted_workers(self) -> int:
        """The last requested number of workers, or the planned one."""
        try:
            wanted = int(json.loads((self.folder / WORKERS).read_bytes())["workers"])
        except (OSError, ValueError, KeyError, TypeError):
            wanted = 0
        return wanted or self._planned_workers

    @property
    def quiet(self) -> bool:
        """True if no task is open and nothing waits for its commit."""
        with self._condition:
            return self._queue.quiet and not self._ready

    def join(self) -> int:
        """Register a worker and return its number."""
        with self._condition:
            self._worker += 1
            self._queue.join(self._worker)
            self._condition.notify_all()
            return self._worker

    def next_task(self, worker: int, result: Facts | None) -> Facts:
        """Take a worker's result and return its next task.

        Waits until the result is committed, if it can be: a worker never computes with values that lack its
        own push.
        """
        with self._condition:
            if result is not None:
                done = self._take(worker, result)
                while done in self._ready and not self._over:
                    self._condition.wait()
            while not self._over:
                task = self._queue.next_task(worker, time.monotonic())
                if task is not None:
                    return self._order(task)
                self._condition.wait()
            return {"kind": "end"}

    def leave(self, worker: int) -> None:
        """Return the open tasks of a worker that left or died to the queue."""
        with self._condition:
            self._queue.leave(worker)
            self._condition.notify_all()

    def loop(self, stopped: Callable[[], bool]) -> Outcome:
        """Train until the run is over or a stop is requested."""
        stopping_since, task = math.inf, self.task
        # A primary that died at a boundary may not have saved.
        if self.quiet and not task.over and not task.at_boundary(stopped):
            return self._stop()
        self._release_batches()
        while not task.over:
            stopping = stopped() or task.waiting
            stopping_since = min(stopping_since, time.monotonic()) if stopping else math.inf
            if stopping or self.shard.due:
                self._drain()
            if self._at_boundary:
                if not task.at_boundary(stopped):
                    return self._stop()
                self.since = time.perf_counter()
                self._release_batches()
                continue
            done = self.await_done()
            if done is not None:
                self._commit(done)
            elif stopped() and time.monotonic() - stopping_since > DRAIN_S:
                return self._stop()
            else:
                self._reassign_late()
        task.finish()
        return "finished"

    def end(self) -> None:
        """Dismiss the workers and close everything."""
        with self._condition:
            self._over = True
            self._condition.notify_all()
        self.task.end()
        self._peers.close()
        self.shard.close(CLOSE_S)

    def evaluate(self) -> FinishedWork:
        """Let the workers evaluate held-out text, each a part of it. Only at a boundary."""
        with self._condition:
            self._queue.evaluate(self.step, max(1, self._queue.workers))
            self._condition.notify_all()
        while (done := self.await_done()) is None:
            self._reassign_late()
        self._settle()
        return done

    def save(self, state: State) -> Path:
        """Write a checkpoint with all servers; if a server dies meanwhile, wait for it and start over."""
        for _ in range(SAVE_TIMES):
            try:
                path = self._save_with(self._peers.group(state), state)
            except ConnectionError as error:
                self.record.emit("warning", message=f"a server was lost during a save: {error}")
                self._peers.close()
                continue
            self._updates = []
            return path
        raise StoreFailed(f"{self.folder}: the servers could not save together", hint="see logs/ of the run")

    def gathered(self) -> list[dict[str, Tensor]]:
        """Return the values of all servers, one dictionary of arrays each."""
        return [self.shard.pull({})[1], *(frame.arrays for frame in self._peers.frames(do="pull"))]

    def await_done(self, seconds: float = POLL_EVERY_S) -> FinishedWork | None:
        """Wait for work that can be committed, or for a complete evaluation."""
        with self._condition:
            if not self._ready:
                self._condition.wait(seconds)
            return self._ready[0] if self._ready else None

    @property
    def _at_boundary(self) -> bool:
        with self._condition:
            return self.step == self._queue.limit and self._queue.quiet

    def _take(self, worker: int, result: Facts) -> FinishedWork | None:
        self.bytes_sent += result.pop("sent")
        self.bytes_received += result.pop("received")
        self._took_s.append(float(result.pop("took_s")))
        done = self._queue.finish(worker, result.pop("task"), result)
        if done is not None:
            self._ready.append(done)
            self._condition.notify_all()
        return done

    def _order(self, task: WorkerTask) -> Facts:
        known = {"stamp": self.shard.stamp, "mode": self.task.sync.mode}
        return {**asdict(task), **known, **self.task.order(task)}

    def _release_batches(self) -> None:
        """Allow batches up to the next boundary."""
        with self._condition:
            self._queue.limit = max(self._queue.begun, self.task.limit(self.step))
            self._queue.sync = self.task.sync
            self._set_parts()
            self._condition.notify_all()

    def _drain(self) -> None:
        """Start no more batches, so that a boundary follows when all open ones are committed."""
        with self._condition:
            self._queue.limit = self.task.aligned(self._queue.begun)

    def _set_parts(self) -> None:
        """Divide batches by the requested number of workers, however many are connected."""
        self._queue.parts = max(1, min(self.task.size, self.task.parts(self.wanted_workers)))

    def _reassign_late(self) -> None:
        """Reassign tasks that a worker has held far longer than any recent task took."""
        with self._condition:
            longest_s = max(self._took_s, default=FIRST_TASK_S / LATE_FACTOR)
            before_s = time.monotonic() - max(LATE_S, LATE_FACTOR * longest_s)
            for worker in self._queue.late(before_s):
                self._queue.leave(worker)
                self._condition.notify_all()
                message = f"worker number {worker} is late: its tasks are reassigned"
                self.record.emit("warning", message=message)

    def _commit(self, done: FinishedWork) -> None:
        """Commit an update: in this server's log first, then on all servers."""
        with self._condition:
            dropped, self._queue.dropped = self._queue.dropped, []
        square = self._square(done.tasks) if self.task.needs_norm and len(done.tasks) > 1 else None
        train_s = self.train_s + time.perf_counter() - self.since
        progress = TaskProgress(self.shard.version, self.samples, self.step, square, train_s)
        update = self.task.build_update(done, progress)
        self.shard.drop(dropped)
        replies = [self.shard.commit(update)]
        self._updates.append(update)
        replies += self._check_all(self._peers.call_all(do="commit", update=asdict(update), drop=dropped))
        self.samples += update.positions
        now = time.perf_counter()
        seconds, self.since, self.train_s = now - self.since, now, update.train_s
        self.task.on_committed(update, replies, seconds)
        self._settle()

    def _settle(self) -> None:
        """Remove the first finished work and wake the threads that wait for it."""
        with self._condition:
            self._queue.settle(self._ready.popleft())
            self._set_parts()
            self._queue.committed = self.step
            self._condition.notify_all()

    def _square(self, tasks: Sequence[str]) -> float:
        """Return the square of the norm of the sum of some gradients, over all servers."""
        answers = self._check_all(self._peers.call_all(do="square", tasks=tasks))
        return self.shard.square(tasks) + math.fsum(answer["square"] for answer in answers)

    def _check_all(self, answers: list[Facts]) -> list[Facts]:
        for number, answer in enumerate(answers, start=1):
            check_followed(number, answer)
        return answers

    def _missed(self, stamp: Sequence[int]) -> list[ServerUpdate]:
        """Return the updates that a server with this stamp has missed."""
        base, version = stamp
        followed = base == self.shard.base.step or version == self.shard.base.step
        if not followed or not self.shard.base.step <= version <= self.shard.version:
            raise CannotFollow(f"a server is at update {version}, the run at {self.shard.version}")
        return [update for update in self._updates if update.number > version]

    def _save_with(self, group: StarGroup, state: State) -> Path:
        try:
            path = self.shard.save(state, group)
        except StoreFailed:
            group.end()  # the save has failed on all servers
            raise
        group.end()
        return path

    def _stop(self) -> Outcome:
        self.task.stop(left=0 if self._queue.quiet else self._queue.begun - self.step)
        return "stopped"
