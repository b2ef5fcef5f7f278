"""The protocol of a training task on servers: what the primary trains; primary.py manages the workers.

A step is a batch. Implementations: network/network_task.py, word2vec/word2vec_task.py, hmm/hmm_task.py.
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
    """State of the run when an update is built."""

    version: int
    samples: int
    """Committed positions so far."""
    step: int
    square: float | None
    """Squared gradient norm over all servers; None if the push of one worker is the whole update."""
    train_s: float


class ServerTask(Protocol):
    """Defines the batches of a run, and what happens between them."""

    record: EventLog
    size: int
    """Positions of a batch."""
    needs_norm: bool
    """True if an update needs the gradient norm over all servers."""

    @property
    def sync(self) -> Sync: ...

    @property
    def over(self) -> bool: ...

    @property
    def waiting(self) -> bool:
        """True if a request waits for the next boundary."""

    def begin(self, base: State, updates: Sequence[ServerUpdate], skipped: Sequence[str]) -> None:
        """Resume after a checkpoint and the updates that followed it."""

    def limit(self, step: int) -> int:
        """Return the step of the next boundary after `step`."""

    def aligned(self, step: int) -> int:
        """Return the first step from `step` on that can be a boundary."""

    def parts(self, workers: int) -> int:
        """Return the number of parts of a batch for this many workers."""

    def order(self, task: WorkerTask) -> Facts:
        """Return the fields of a worker's task that depend on the kind of model."""

    def build_update(self, done: FinishedWork, progress: TaskProgress) -> ServerUpdate: ...

    def on_committed(self, update: ServerUpdate, replies: Sequence[dict[str, Any]], seconds: float) -> None:
        """Log a committed update; `replies` are those of the servers."""

    def at_boundary(self, stopped: Callable[[], bool]) -> bool:
        """Do what is due when all batches so far are committed; return False to stop."""

    def stop(self, *, left: int) -> None:
        """Stop for now; `left` batches were begun and are not committed."""

    def finish(self) -> None:
        """Write the final model."""

    def end(self) -> None:
        """Close everything."""
