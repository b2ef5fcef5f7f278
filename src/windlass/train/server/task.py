"""What is learnt on servers, as the first of them leads it; primary.py is the side that knows workers.

A step is a batch. There is one course for each kind of thing: network/course.py, vectors/course.py,
hidden/course.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from windlass.spec.sync import Sync
from windlass.train.checkpoint.async_save import State
from windlass.train.event_log import EventLog
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask


@dataclass(frozen=True)
class TaskProgress:
    """Where the run stands when an update is drawn up."""

    version: int
    samples: int
    """Positions that were committed so far."""
    step: int
    square: float | None
    """Of the norm over all servers, None where the push of one worker is the whole update."""
    train_s: float


class ServerTask(Protocol):
    """Decides what the batches of a run are, and what happens between them."""

    record: EventLog
    size: int
    """Positions of a batch."""
    squared: bool
    """Whether an update needs the norm over all servers."""

    @property
    def sync(self) -> Sync: ...

    @property
    def over(self) -> bool: ...

    @property
    def waiting(self) -> bool:
        """Whether somebody asked for something that is done at a border."""

    def begin(self, base: State, updates: Sequence[ServerUpdate], passed_over: Sequence[str]) -> None:
        """Take up the run after a checkpoint and the updates that followed it."""

    def limit(self, step: int) -> int:
        """Return the step of the next border, after one that stands at `step`."""

    def aligned(self, step: int) -> int:
        """Return the first step from `step` on that can be a border."""

    def parts(self, workers: int) -> int:
        """Return into how many parts a batch is divided for so many workers."""

    def order(self, task: WorkerTask) -> Facts:
        """Return what a worker must know of a task, beside which it is."""

    def draw_up(self, done: FinishedWork, standing: TaskProgress) -> ServerUpdate: ...

    def entered(self, update: ServerUpdate, told: Sequence[dict[str, Any]], seconds: float) -> None:
        """Tell of an update that is committed; `told` is what the servers say of it."""

    def border(self, stopped: Callable[[], bool]) -> bool:
        """Do what is due where all batches so far are committed; return whether to go on."""

    def stop(self, *, left: int) -> None:
        """End for now; `left` batches were begun and are not committed."""

    def finish(self) -> None:
        """Make the result."""

    def end(self) -> None:
        """Close everything."""
