"""A small typed client of the control API: runs, looked at and changed while they go on.

    with Jobs("http://127.0.0.1:8100", key) as jobs:
        jobs.set("poems", {"train.learning_rate": 1e-4})
        for record in jobs.watch("poems"):
            ...

A run is named NAME/NUMBER, or NAME for the newest one. What the server refuses is raised as the error a local
call would raise, with its hint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.sdk.connection import Connection, ServiceFailed
from windlass.spec.errors import NotFound

ANSWER_S = 60.0

Facts = dict[str, Any]
Many = list[Facts]


class Jobs(Connection):
    """Talks to one control API."""

    absent = "is `windlass control` running there?"

    def __init__(self, url: str, key: str, *, timeout_s: float = ANSWER_S) -> None:
        super().__init__(url, timeout_s=timeout_s, key=key)

    def list(self) -> Many:
        """Return how every run stands."""
        found: Many = self._ask("GET", "/v1/jobs")["jobs"]
        return found

    def show(self, run: str) -> Facts:
        """Return how a run stands: state, step, loss, settings in force, changes and who made them."""
        return self._ask("GET", self._path(run))

    def journal(self, run: str, *, after: int = 0) -> Many:
        """Return what a run told, behind the first `after` records."""
        path = f"{self._path(run)}/journal"
        records: Many = []
        while part := self._ask("GET", f"{path}?after={after + len(records)}")["records"]:
            records += part
        return records

    def audit(self, run: str) -> Facts:
        """Return whether every sample was used exactly once."""
        facts: Facts = self._ask("GET", f"{self._path(run)}/audit")["facts"]
        return facts

    def goodput(self, run: str) -> Facts:
        """Return where every second went."""
        return self._ask("GET", f"{self._path(run)}/goodput")

    def incidents(self, run: str) -> Many:
        """Return what went wrong, and what was done about it."""
        found: Many = self._ask("GET", f"{self._path(run)}/incidents")["incidents"]
        return found

    def set(self, run: str, changes: Mapping[str, bool | int | float | str]) -> Facts:
        """Ask for other settings, {"train.learning_rate": 1e-4}; return the request."""
        return self._request(run, "set", {"changes": dict(changes)})

    def scale(self, run: str, workers: int) -> Facts:
        """Ask an elastic run to go on with another number of workers."""
        return self._ask("POST", f"{self._path(run)}/scale", {"workers": workers})

    def pause(self, run: str) -> Facts:
        """Ask a run to wait at its next step border."""
        return self._request(run, "pause")

    def resume(self, run: str) -> Facts:
        """Ask a paused run to go on."""
        return self._request(run, "resume")

    def stop(self, run: str) -> Facts:
        """Ask a run to save a checkpoint and end."""
        return self._request(run, "stop")

    def undo(self, run: str) -> Facts:
        """Ask a run to go back to the settings before its last change."""
        return self._request(run, "undo")

    def watch(self, run: str, *, after: int = 0) -> Iterator[Facts]:
        """Yield the records of a run's journal as they come, until the run ends."""
        path = f"{self._path(run)}/journal?after={after}"
        return _records(self._lines("GET", path, headers={"accept": "text/event-stream"}))

    def _request(self, run: str, verb: str, body: Facts | None = None) -> Facts:
        asked: Facts = self._ask("POST", f"{self._path(run)}/{verb}", body or {})["request"]
        return asked

    def _path(self, run: str) -> str:
        name, _, number = run.partition("/")
        return f"/v1/jobs/{name}/{number or self._newest(name)}"

    def _newest(self, name: str) -> str:
        numbers = [
            int(job["run"].rpartition("/")[2]) for job in self.list() if job["run"].startswith(f"{name}/")
        ]
        if not numbers:
            raise NotFound(f"no run of '{name}'")
        return str(max(numbers))


def _records(lines: Iterator[str]) -> Iterator[Facts]:
    """Yield the data of server-sent events up to the one called "end"; without it the stream has failed."""
    for line in lines:
        if line == "event: end":
            return
        if line.startswith("data: "):
            yield json.loads(line[6:])
    raise ServiceFailed("the connection broke before the run ended")
