"""The queue of tasks: hands out batches so that each is trained on exactly once.

A pure decision without clock, network or tensors. Batch b is the positions b * size to (b + 1) * size - 1 of
the run's order of samples, divided into parts. In synchronous mode a batch starts when its predecessor is
committed, and is done when all its parts are. In the other modes every part is done by itself, and the next
one starts when a worker requests a task. In bounded mode a worker must wait while it has more than
`staleness` parts committed more than the slowest worker. Unfinished tasks of a lost worker are handed out
again before anything else.

Nothing at or beyond `limit` is handed out. When all batches below it are committed, the run is at a boundary:
the data state is one number again, and evaluations and checkpoints take place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from windlass.spec.sync import Sync

Facts = dict[str, Any]
Kind = Literal["learn", "evaluate"]


class BatchPart(NamedTuple):
    """A part of a batch; the whole of it is part 0 of 1."""

    batch: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class WorkerTask:
    """Something for one worker to compute."""

    id: str
    kind: Kind
    batch: int
    """Batch to train on; of an evaluation, the number of steps before it."""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class FinishedWork:
    """Work that can be committed, or a complete evaluation: the tasks in order, and the result of each."""

    kind: Kind
    piece: BatchPart
    tasks: tuple[str, ...]
    facts: tuple[Facts, ...]
    worker: int
    """The last worker to finish."""


@dataclass
class _Round:
    """The parts of one batch that are done so far."""

    parts: int
    done: dict[int, tuple[str, Facts]] = field(default_factory=dict)


class WorkQueue:
    """Hands out tasks, and collects their results."""

    def __init__(self, sync: Sync, life: str, *, committed: Iterable[BatchPart] = (), first: int = 0) -> None:
        """`committed` are the finished parts of batches from `first` on; all batches before `first` are
        done."""
        self.sync, self._life = sync, life
        self.limit = self.committed = first
        """Nothing from `limit` on is handed out; `committed` counts the completely committed batches."""
        self.parts = 1
        """Number of parts of each batch from the next one on."""
        self._issued = 0
        self._waiting: deque[WorkerTask] = deque()
        self._open: dict[str, tuple[int, WorkerTask, float]] = {}
        self._rounds: dict[tuple[Kind, int], _Round] = {}
        self._ended: dict[int, int] = {}
        """Committed parts by connected worker; a new worker starts with the count of the slowest."""
        self.dropped: list[str] = []
        """Tasks returned since the primary emptied this list; some servers may hold their pushes."""
        pieces = list(committed)
        self._next = max((piece.batch for piece in pieces), default=first - 1) + 1
        self._left = sorted(set(range(first, self._next)) - {piece.batch for piece in pieces})
        self._resume(pieces)

    @property
    def quiet(self) -> bool:
        """True if everything that was begun is done."""
        return not self._rounds and not self._left

    @property
    def begun(self) -> int:
        """The first batch that has not started."""
        return self._next

    @property
    def workers(self) -> int:
        return len(self._ended)

    def join(self, worker: int) -> None:
        self._ended.setdefault(worker, min(self._ended.values(), default=0))

    def next_task(self, worker: int, now_s: float = 0.0) -> WorkerTask | None:
        """Return a worker's next task; None if it has to wait."""
        self.join(worker)  # a late worker that was removed joins again
        if not self._waiting and self._left:
            self._begin("learn", self._left.pop(0), self.parts)
        elif not self._waiting and self._may_begin():
            self._begin("learn", self._next, self.parts)
            self._next += 1
        if not self._waiting or self._too_far_ahead(worker):
            return None
        task = self._waiting.popleft()
        self._open[task.id] = (worker, task, now_s)
        return task

    def late(self, before_s: float) -> list[int]:
        """Return the workers whose tasks were handed out before that time."""
        return [worker for worker, _, since_s in self._open.values() if since_s < before_s]

    def finish(self, worker: int, task_id: str, facts: Facts) -> FinishedWork | None:
        """Take a worker's result; return the work that it completes, if any."""
        held, task, _ = self._open.get(task_id, (None, None, 0.0))
        if task is None or held != worker:
            return None  # the task was reassigned
        del self._open[task_id]
        gathered = self._rounds[(task.kind, task.batch)]
        gathered.done[task.part] = (task_id, facts)
        complete = len(gathered.done) == gathered.parts
        if complete:
            del self._rounds[(task.kind, task.batch)]
        if task.kind == "learn" and self.sync.mode != "synchronous":
            return FinishedWork(
                "learn", BatchPart(task.batch, task.part, task.parts), (task_id,), (facts,), worker
            )
        if not complete:
            return None
        ids, results = zip(*(gathered.done[part] for part in range(gathered.parts)), strict=True)
        return FinishedWork(task.kind, BatchPart(task.batch), ids, results, worker)

    def settle(self, done: FinishedWork) -> None:
        """Count committed work for its worker, if it is still connected."""
        if done.kind == "learn" and done.worker in self._ended:
            self._ended[done.worker] += 1

    def leave(self, worker: int) -> None:
        """Return the unfinished tasks of a lost worker to the queue."""
        self._ended.pop(worker, None)
        for _, task, _ in [opened for opened in self._open.values() if opened[0] == worker]:
            del self._open[task.id]
            if task.kind == "learn":
                self.dropped.append(task.id)
            self._waiting.appendleft(WorkerTask(self._new_id(), task.kind, task.batch, task.part, task.parts))

    def evaluate(self, batch: int, parts: int) -> None:
        """Queue an evaluation of held-out text; only at a boundary."""
        assert self.quiet, "an evaluation needs a boundary"
        self._begin("evaluate", batch, parts)

    def _may_begin(self) -> bool:
        if self._next >= self.limit:
            return False
        return self.sync.mode != "synchronous" or self._next == self.committed

    def _too_far_ahead(self, worker: int) -> bool:
        """Return True if the staleness bound holds the worker back; it applies to training, not to
        evaluation."""
        bounded = self.sync.mode == "bounded" and self._waiting[0].kind == "learn"
        return bounded and self._ended[worker] - min(self._ended.values()) > self.sync.staleness

    def _begin(self, kind: Kind, batch: int, parts: int) -> None:
        self._rounds[(kind, batch)] = _Round(parts)
        self._waiting += [WorkerTask(self._new_id(), kind, batch, part, parts) for part in range(parts)]

    def _resume(self, committed: list[BatchPart]) -> None:
        """Queue the remaining parts of partly committed batches."""
        begun: dict[int, _Round] = {}
        for batch, part, parts in sorted(committed):
            begun.setdefault(batch, _Round(parts)).done[part] = ("", {})
        for batch, gathered in begun.items():
            left = [part for part in range(gathered.parts) if part not in gathered.done]
            if left:
                self._rounds[("learn", batch)] = gathered
            self._waiting += [
                WorkerTask(self._new_id(), "learn", batch, part, gathered.parts) for part in left
            ]

    def _new_id(self) -> str:
        self._issued += 1
        return f"{self._life}-{self._issued}"
