"""The view of a network task that its events, settings and ledger use."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from windlass.spec.run import Run
from windlass.train.event_log import EventLog


class NetworkTaskContext(Protocol):
    """The current state of a run on parameter servers."""

    run: Run
    """The run with the requested settings applied."""
    planned: Run
    """The run as planned, without requested settings."""
    folder: Path
    record: EventLog

    @property
    def step(self) -> int: ...

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint."""

    @property
    def workers(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...

    def follow_plan(self, planned: Run, run: Run) -> None:
        """Continue with another plan, and with the requested settings."""
