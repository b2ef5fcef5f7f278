"""Runtime settings of a run on parameter servers; like train.runtime_settings, for the primary alone."""

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
from windlass.train.server.network.task_context import NetworkTaskContext
from windlass.train.settings_file import answered_before, load_request, newest_request

POLL_EVERY_S = 0.1


class ServerSettings:
    """The settings requests of one run, and the newest one applied."""

    def __init__(self, folder: Path, record: EventLog) -> None:
        self._folder, self._record = folder, record
        self._taken = 0
        self._settings: Settings | None = None

    @property
    def waiting(self) -> bool:
        """True if a request is not applied yet, or asks for a pause or a stop."""
        paused = self._settings is not None and (self._settings.paused or self._settings.stop)
        return paused or newest_request(self._folder) > self._taken

    def begin(self, context: NetworkTaskContext) -> None:
        """Apply the newest request at the start of the run."""
        self._take_newest(context)

    def apply_newest(self, context: NetworkTaskContext, stopped: Callable[[], bool]) -> bool:
        """At a boundary: apply the newest request and wait while paused; return False to stop."""
        self._take_newest(context)
        announced = False
        while (
            not stopped() and self._settings is not None and self._settings.paused and not self._settings.stop
        ):
            if not announced:
                self._record.emit("paused", step=context.step, by=self._settings.by)
                announced = True
            time.sleep(POLL_EVERY_S)
            self._take_newest(context)
        if announced and self._settings is not None and not self._settings.paused:
            self._record.emit("unpaused", step=context.step, by=self._settings.by)
        return not (stopped() or (self._settings is not None and self._settings.stop))

    def follow(self, context: NetworkTaskContext, planned: Run) -> None:
        """Continue with another plan, and with the requested settings."""
        context.follow_plan(planned, applied(planned, self._settings))

    def _take_newest(self, context: NetworkTaskContext) -> None:
        number = newest_request(self._folder)
        if number <= self._taken:
            return
        self._taken = number
        try:
            settings = load_request(self._folder)
        except (WindlassError, OSError, json.JSONDecodeError) as error:
            self._record.emit("warning", message=f"settings {number} not applied: {error}")
            return
        refused = server_refusal(context.planned, settings.sync)
        known, before = (
            (self._settings.id, self._settings.values) if self._settings else answered_before(self._folder)
        )
        if refused is not None:
            self._emit_settings(context, settings, {}, refused=refused)
            return
        self._settings = settings
        self.follow(context, context.planned)
        if settings.id > known:
            changed, old = difference(before, settings.values)
            self._emit_settings(context, settings, changed, before=old)

    def _emit_settings(
        self, context: NetworkTaskContext, settings: Settings, changed: dict[str, Any], **more: Any
    ) -> None:
        facts: dict[str, Any] = {"id": settings.id, "by": settings.by, "undoes": settings.undoes}
        self._record.emit("settings", step=context.step, changed=changed, **facts, **{"before": {}, **more})
