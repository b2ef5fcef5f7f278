"""Who computes what next: batches, handed out so that each is learned from exactly once.

A decision without clock, network or tensor. Batch b is the positions b * size to (b + 1) * size - 1 of the
run's order of samples, divided into parts. In synchronous mode a batch is begun when the one before it is
committed, in bounded mode when the oldest that is not committed is at most `staleness` before it, in
asynchronous mode as soon as somebody asks. What a worker that is gone had not finished is handed out again,
before anything else.

Nothing at or beyond `limit` is handed out. All batches below it committed is a border: then the data's whole
state is one number again, and evaluations and checkpoints have their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.spec.sync import Sync

Facts = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Something for one worker to compute."""

    id: str
    kind: Literal["learn", "look"]
    batch: int
    """To learn from; of a look, the number of updates before it."""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Done:
    """All parts of one batch, or of one look: the tasks in order, and what was told of each."""

    kind: Literal["learn", "look"]
    batch: int
    tasks: tuple[str, ...]
    facts: tuple[Facts, ...]


@dataclass
class _Round:
    """The parts of one batch that are done so far."""

    kind: Literal["learn", "look"]
    parts: int
    done: dict[int, tuple[str, Facts]] = field(default_factory=dict)


class Dispenser:
    """Hands out tasks, and gathers what came of them."""

    def __init__(self, sync: Sync, life: str, *, committed: Iterable[int] = (), first: int = 0) -> None:
        """`committed` are batches from `first` on that are done already; all before `first` are."""
        self.sync, self._life = sync, life
        self.limit = self.committed = first
        """Nothing from `limit` on is handed out; `committed` counts the updates that were made."""
        self.parts = 1
        """Into how many a batch is divided from the next one on."""
        done = set(committed)
        self._next = max(done, default=first - 1) + 1
        self._issued = 0
        self._waiting: deque[Task] = deque()
        self._open: dict[str, tuple[int, Task, float]] = {}
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._workers: set[int] = set()
        self.dropped: list[str] = []
        """Tasks that were given back since somebody emptied this; their gradients may lie at some servers."""
        self._left = sorted(set(range(first, self._next)) - done)

    @property
    def quiet(self) -> bool:
        """Whether everything that was begun is done."""
        return not self._rounds and not self._left

    @property
    def begun(self) -> int:
        """The first batch of which nothing was handed out yet."""
        return self._next

    @property
    def workers(self) -> int:
        return len(self._workers)

    def join(self, worker: int) -> None:
        self._workers.add(worker)

    def ask(self, worker: int, now_s: float = 0.0) -> Task | None:
        """Return what a worker shall do next, None if it has to wait."""
        self.join(worker)  # one that was late once is welcome again
        if not self._waiting and self._left:
            self._begin("learn", self._left.pop(0), self.parts)
        elif not self._waiting and self._may_begin():
            self._begin("learn", self._next, self.parts)
            self._next += 1
        if not self._waiting:
            return None
        task = self._waiting.popleft()
        self._open[task.id] = (worker, task, now_s)
        return task

    def late(self, before_s: float) -> list[int]:
        """Return the workers whose tasks were handed out before that time."""
        return [worker for worker, _, since_s in self._open.values() if since_s < before_s]

    def finish(self, worker: int, task_id: str, facts: Facts) -> Done | None:
        """Take what a worker did; return the batch, or the look, that is complete by it."""
        held, task, _ = self._open.get(task_id, (None, None, 0.0))
        if task is None or held != worker:
            return None  # it was given to somebody else meanwhile
        del self._open[task_id]
        key = (task.kind, task.batch)
        gathered = self._rounds[key]
        gathered.done[task.part] = (task_id, facts)
        if len(gathered.done) < gathered.parts:
            return None
        del self._rounds[key]
        ids, told = zip(*(gathered.done[part] for part in range(gathered.parts)), strict=True)
        return Done(task.kind, task.batch, ids, told)

    def leave(self, worker: int) -> None:
        """Take back what a worker that is gone had not finished."""
        self._workers.discard(worker)
        for _, task, _ in [one for one in self._open.values() if one[0] == worker]:
            del self._open[task.id]
            if task.kind == "learn":
                self.dropped.append(task.id)
            self._waiting.appendleft(Task(self._new_id(), task.kind, task.batch, task.part, task.parts))

    def look(self, batch: int, parts: int) -> None:
        """Let everybody look at held-out text, at a border."""
        assert self.quiet, "a look needs a border"
        self._begin("look", batch, parts)

    def _may_begin(self) -> bool:
        if self._next >= self.limit:
            return False
        if self.sync.mode == "asynchronous":
            return True
        if self.sync.mode == "synchronous":
            return self._next == self.committed
        oldest = min((batch for _, batch in self._rounds), default=self._next)
        return (
            self._next - oldest <= self.sync.staleness and self._next - self.committed <= self.sync.staleness
        )

    def _begin(self, kind: Literal["learn", "look"], batch: int, parts: int) -> None:
        self._rounds[(kind, batch)] = _Round(kind, parts)
        self._waiting += [Task(self._new_id(), kind, batch, part, parts) for part in range(parts)]

    def _new_id(self) -> str:
        self._issued += 1
        return f"{self._life}-{self._issued}"
