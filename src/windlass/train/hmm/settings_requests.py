"""Runtime settings of a hidden Markov run, applied between iterations.

Users may change the number of iterations and the intervals of evaluation and checkpoints, and pause or stop
the run. Settings of gradient training are refused, and the journal says so.
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
"""Settings of gradient training."""


class HmmSettings:
    """The settings requests of one run. All processes poll together; rank 0 reads the files."""

    def __init__(self, folder: Path, planned: Run, group: ProcessGroup, record: EventLog) -> None:
        self._folder, self._planned, self._group, self._record = folder, planned, group, record
        self._taken = 0
        self._settings: Settings | None = None

    def apply_newest(self, step: int, stopped: Callable[[], bool]) -> tuple[Run, bool]:
        """Apply the newest request and wait while the run is paused; return the run with its settings, and
        whether to stop."""
        self._take_newest(step)
        stop = self._stop_requested(stopped)
        if self._settings is not None and self._settings.paused and not stop:
            self._record.emit("paused", step=step, by=self._settings.by)
            while self._settings.paused and not stop:
                time.sleep(LOOK_EVERY_S)
                self._take_newest(step)
                stop = self._stop_requested(stopped)
            if not stop:
                self._record.emit("unpaused", step=step, by=self._settings.by)
        return applied(self._planned, self._settings), stop

    def _stop_requested(self, stopped: Callable[[], bool]) -> bool:
        own = bool(stopped()) or (self._settings is not None and self._settings.stop)
        return any(self._group.all_gather_json(own))

    def _take_newest(self, step: int) -> None:
        """Warn once about a request that cannot be read: it must not end the run."""
        request = self._group.all_gather_json(_load(self._folder) if self._group.rank == 0 else None)[0]
        if request["id"] <= self._taken:
            return
        self._taken = request["id"]
        if "reason" in request:
            self._record.emit("warning", message=f"settings {request['id']} not applied: {request['reason']}")
            return
        self._take(Settings.model_validate(request), step)

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
            self._record.emit("warning", message=f"settings {settings.id} not applied: {reason}")
            self._record.emit("settings", changed={}, before={}, refused=reason, **facts)
            return
        known, before = answered_before(self._folder) if self._group.rank == 0 else (settings.id, AS_PLANNED)
        self._settings = settings
        if settings.id > known:
            changed, was = difference(before, settings.values)
            self._record.emit("settings", changed=changed, before=was, **facts)


def _load(folder: Path) -> dict[str, Any]:
    number = newest_request(folder)
    if number == 0:
        return {"id": 0}
    try:
        return load_request(folder).model_dump(mode="json")
    except (WindlassError, OSError, ValueError) as error:
        return {"id": number, "reason": str(error)}
