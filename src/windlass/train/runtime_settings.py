"""Runtime settings: changes that users request while a run is active (docs/formats/settings.md).

Rank 0 reads the file of requests, and all processes of the run apply a request at the same step boundary.
spec/settings.py decides which requests a run refuses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import WindlassError
from windlass.spec.run import JOURNAL, Run
from windlass.spec.settings import SETTINGS, Settings, applied, difference, folded, refusal
from windlass.store.journal import Journal
from windlass.store.settings_file import newest
from windlass.store.store_dir import StoreDir
from windlass.train.event_log import EventLog

POLL_EVERY_S = 0.1


def _ignore(_run: Run) -> None:
    """The default of `follow`: the caller reads `RuntimeSettings.run` itself."""


class RuntimeSettings:
    """The settings requests of one run. All processes of the group make the same calls together.

    `planned` is the run as planned, `run` the same with the settings in force. `follow` is called with the
    new `run` at every change.
    """

    def __init__(
        self,
        planned: Run,
        folder: Path,
        record: EventLog,
        group: ProcessGroup,
        follow: Callable[[Run], None] = _ignore,
    ) -> None:
        self.planned = self.run = planned
        self._folder, self._record, self._group, self._follow = folder, record, group, follow
        self._in_force: Settings | None = None
        self._newest = 0
        """Number of the newest request that was applied or refused."""

    @property
    def paused(self) -> bool:
        return self._in_force is not None and self._in_force.paused

    @property
    def stop(self) -> bool:
        return self._in_force is not None and self._in_force.stop

    @property
    def waiting(self) -> bool:
        """True if a request is not applied yet, or asks for a pause or a stop."""
        return self.paused or self.stop or newest_request(self._folder) > self._newest

    def at_boundary(self, step: int, stopped: Callable[[], bool]) -> bool:
        """Apply the newest request and wait while the run is paused; return True if the run must stop."""
        self.apply_newest(step)
        stop = any(self._group.all_gather_json(bool(stopped())))
        return stop or self.stop or self.wait_while_paused(step, stopped)

    def apply_newest(self, step: int, request: int | None = None) -> None:
        """Apply the newest request. With `request`, the number of the newest one as all processes know it,
        nothing is read unless that one is new.

        A request that cannot be read causes one warning: it must not end the run.
        """
        if request is not None and request <= self._newest:
            return
        loaded = _load(self._folder) if self._group.rank == 0 else None
        found = self._group.all_gather_json(loaded)[0]
        if found["id"] <= self._newest:
            return
        self._newest = found["id"]
        if "reason" in found:
            self._warn(found["reason"])
        else:
            self._apply(Settings.model_validate(found), step)

    def wait_while_paused(self, step: int, stopped: Callable[[], bool]) -> bool:
        """Wait while the run is paused, applying further requests; return True if any process must stop."""
        if self._in_force is None or not self.paused:
            return False
        self._record.emit("paused", step=step, by=self._in_force.by)
        while self.paused:
            if self.stop:
                return True
            time.sleep(POLL_EVERY_S)
            request = newest_request(self._folder) if self._group.rank == 0 else 0
            votes = self._group.all_gather_json([request, bool(stopped())])
            if any(stop for _, stop in votes):
                return True
            self.apply_newest(step, votes[0][0])
        self._record.emit("unpaused", step=step, by=self._in_force.by)
        return self.stop

    def follow_plan(self, planned: Run) -> None:
        """Continue with another plan (layout, time budget); the requested settings stay in force."""
        self.planned, self.run = planned, applied(planned, self._in_force)
        self._follow(self.run)

    def _apply(self, settings: Settings, step: int) -> None:
        """Apply settings, and log what changed and who requested it; each request is logged once."""
        facts: dict[str, Any] = {
            "step": step, "id": settings.id, "by": settings.by, "undoes": settings.undoes,
        }  # fmt: skip
        reason = refusal(self.planned, settings)
        if reason is not None:
            self._warn(reason)
            self._record.emit("settings", changed={}, before={}, refused=reason, **facts)
            return
        known, before = self._logged(settings.id)
        self._in_force = settings
        self.follow_plan(self.planned)
        if settings.id > known:
            changed, replaced = difference(before, settings.values)
            self._record.emit("settings", changed=changed, before=replaced, **facts)

    def _logged(self, request: int) -> tuple[int, dict[str, Any]]:
        """Return the newest request in the journal, and the values in force; only rank 0 has the journal."""
        if self._in_force is not None:
            return self._in_force.id, self._in_force.values
        if self._group.rank > 0:
            return request, {}
        return folded(Journal(StoreDir(self._folder), JOURNAL).read())

    def _warn(self, reason: str) -> None:
        self._record.emit("warning", message=f"settings {self._newest} not applied: {reason}")


class StopRequested:
    """Polls for a stop request, for runs that accept no other settings; reads the file every `every_s`."""

    def __init__(self, folder: Path, every_s: float = 0.2) -> None:
        self._folder, self._every_s = folder, every_s
        self._read_at, self._stop = 0.0, False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._stop and now - self._read_at >= self._every_s:
            self._read_at = now
            self._stop = bool(_load(self._folder).get("stop"))
        return self._stop


def newest_request(folder: Path) -> int:
    """Return the number of the newest request, 0 if there is none or it cannot be read.

    Called at every step. A damaged file must not end a run.
    """
    try:
        return int(json.loads((folder / SETTINGS).read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _load(folder: Path) -> dict[str, Any]:
    """Return the newest request as JSON, or its number and the reason why it cannot be read."""
    number = newest_request(folder)
    try:
        settings = newest(folder) if number else None
    except (WindlassError, OSError) as error:
        return {"id": number, "reason": str(error)}
    return {"id": 0} if settings is None else settings.model_dump(mode="json")
