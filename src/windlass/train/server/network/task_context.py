"""What those who work for the course of a network need to know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from windlass.spec.run import Run
from windlass.train.event_log import EventLog


class Lead(Protocol):
    """A run on parameter servers, as it stands."""

    run: Run
    """As it is done now."""
    planned: Run
    """The same without what it was asked to change meanwhile."""
    folder: Path
    record: EventLog

    @property
    def step(self) -> int: ...

    @property
    def saved_step(self) -> int:
        """Of the newest checkpoint."""

    @property
    def workers(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...

    def follow_plan(self, planned: Run, run: Run) -> None:
        """Go on by another plan, and as the run was asked to."""
