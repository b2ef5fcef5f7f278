"""What people ask of a run on parameter servers while it goes on; as control.py, for one process alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.errors import WindlassError
from windlass.spec.run import Run
from windlass.spec.settings import Settings, applied, difference, server_refusal
from windlass.train.event_log import EventLog
from windlass.train.server.network.task_context import Lead
from windlass.train.settings_file import answered_before, load_request, newest_request

LOOK_EVERY_S = 0.1


class ServerSettings:
    """The requests of one run, and which of them was taken."""

    def __init__(self, folder: Path, record: EventLog) -> None:
        self._folder, self._record = folder, record
        self._taken = 0
        self._settings: Settings | None = None

    @property
    def waiting(self) -> bool:
        """Whether somebody asked for something that was not taken yet, or for a pause."""
        paused = self._settings is not None and (self._settings.paused or self._settings.stop)
        return paused or newest_request(self._folder) > self._taken

    def begin(self, lead: Lead) -> None:
        """Go on as the run was last asked to."""
        self._take_newest(lead)

    def take(self, lead: Lead, stopped: Callable[[], bool]) -> bool:
        """At a border: take what was asked, wait while the run shall pause; return whether to go on."""
        self._take_newest(lead)
        told = False
        while (
            not stopped() and self._settings is not None and self._settings.paused and not self._settings.stop
        ):
            if not told:
                self._record.tell("paused", step=lead.step, by=self._settings.by)
                told = True
            time.sleep(LOOK_EVERY_S)
            self._take_newest(lead)
        if told and self._settings is not None and not self._settings.paused:
            self._record.tell("unpaused", step=lead.step, by=self._settings.by)
        return not (stopped() or (self._settings is not None and self._settings.stop))

    def follow(self, lead: Lead, planned: Run) -> None:
        """Go on under another plan, with what was asked for."""
        lead.follow_plan(planned, applied(planned, self._settings))

    def _take_newest(self, lead: Lead) -> None:
        number = newest_request(self._folder)
        if number <= self._taken:
            return
        self._taken = number
        try:
            settings = load_request(self._folder)
        except (WindlassError, OSError, json.JSONDecodeError) as error:
            self._record.tell("warning", message=f"settings {number} not taken: {error}")
            return
        refused = server_refusal(lead.planned, settings.sync)
        known, before = (
            (self._settings.id, self._settings.values) if self._settings else answered_before(self._folder)
        )
        if refused is not None:
            self._tell(lead, settings, {}, refused=refused)
            return
        self._settings = settings
        self.follow(lead, lead.planned)
        if settings.id > known:
            changed, old = difference(before, settings.values)
            self._tell(lead, settings, changed, before=old)

    def _tell(self, lead: Lead, settings: Settings, changed: dict[str, Any], **more: Any) -> None:
        facts: dict[str, Any] = {"id": settings.id, "by": settings.by, "undoes": settings.undoes}
        self._record.tell("settings", step=lead.step, changed=changed, **facts, **{"before": {}, **more})
