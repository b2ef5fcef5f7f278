"""What people ask of a hidden Markov run while it goes on, taken between iterations.

How many iterations, how often to evaluate and to save, a pause and an end can be asked for. Whatever belongs
to gradients is refused, and the journal says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import WindlassError
from windlass.spec.run import Run
from windlass.spec.settings import AS_PLANNED, Settings, applied, difference
from windlass.train.event_log import EventLog
from windlass.train.settings_file import answered_before, load_request, newest_request

LOOK_EVERY_S = 0.2
FOREIGN = ("sync", "learning_rate", "micro_batch_sequences")
"""Settings that only a run that learns by gradients has."""


class HmmSettings:
    """The requests to one run. All processes ask together; rank 0 reads them."""

    def __init__(self, folder: Path, planned: Run, crew: ProcessGroup, record: EventLog) -> None:
        self._folder, self._planned, self._crew, self._record = folder, planned, crew, record
        self._taken = 0
        self._settings: Settings | None = None

    def heed(self, step: int, stopped: Callable[[], bool]) -> tuple[Run, bool]:
        """Take the newest request, and wait while it is to pause; return the run as it shall be done, and
        whether it shall stop."""
        self._take_newest(step)
        stop = self._asked_to_stop(stopped)
        if self._settings is not None and self._settings.paused and not stop:
            self._record.tell("paused", step=step, by=self._settings.by)
            while self._settings.paused and not stop:
                time.sleep(LOOK_EVERY_S)
                self._take_newest(step)
                stop = self._asked_to_stop(stopped)
            if not stop:
                self._record.tell("unpaused", step=step, by=self._settings.by)
        return applied(self._planned, self._settings), stop

    def _asked_to_stop(self, stopped: Callable[[], bool]) -> bool:
        own = bool(stopped()) or (self._settings is not None and self._settings.stop)
        return any(self._crew.share(own))

    def _take_newest(self, step: int) -> None:
        """One that cannot be read is warned about once: it must not end the run."""
        told = self._crew.share(_load(self._folder) if self._crew.rank == 0 else None)[0]
        if told["id"] <= self._taken:
            return
        self._taken = told["id"]
        if "reason" in told:
            self._record.tell("warning", message=f"settings {told['id']} not taken: {told['reason']}")
            return
        self._take(Settings.model_validate(told), step)

    def _take(self, settings: Settings, step: int) -> None:
        foreign = next((key for key in FOREIGN if getattr(settings, key) is not None), None)
        facts: dict[str, Any] = {
            "step": step,
            "id": settings.id,
            "by": settings.by,
            "undoes": settings.undoes,
        }
        if foreign is not None:
            reason = f"a hidden Markov run has no {foreign}"
            self._record.tell("warning", message=f"settings {settings.id} not taken: {reason}")
            self._record.tell("settings", changed={}, before={}, refused=reason, **facts)
            return
        known, before = answered_before(self._folder) if self._crew.rank == 0 else (settings.id, AS_PLANNED)
        self._settings = settings
        if settings.id > known:
            changed, was = difference(before, settings.values)
            self._record.tell("settings", changed=changed, before=was, **facts)


def _load(folder: Path) -> dict[str, Any]:
    number = newest_request(folder)
    if number == 0:
        return {"id": 0}
    try:
        return load_request(folder).model_dump(mode="json")
    except (WindlassError, OSError, ValueError) as error:
        return {"id": number, "reason": str(error)}
