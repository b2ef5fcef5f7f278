"""The control process of a service: runs, models and plans, for the web page and keys with the scope admin.

The service does not depend on it: it is started when everything else is up, and restarted with growing delays
when it ends; engines and gateways keep running.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from windlass.spec.processes import CONTROL_API
from windlass.supervisor.processes import Process
from windlass.supervisor.reconcile import ReplicaLife, restart_delay_s

MAX_LIVES = 20
GRACE_S = 3.0


class ControlChild:
    """The process, its socket in the folder of the service, and the gateways' key next to it."""

    def __init__(self, home: Path, folder: Path, logs: Path, wake: Callable[[], None]) -> None:
        self.socket = folder / "control"
        self.process: Process | None = None
        self._home, self._log, self._wake = home, logs / "control.log", wake
        self._key = write_key(self.socket)
        self._lives: list[ReplicaLife] = []
        self._started_at = 0.0
        self._last_reason = ""

    def step(self, now: float, say: Callable[[str], None]) -> None:
        """Start the process if it does not run and its restart delay is over."""
        if self.process is not None and self.process.exit_code is not None:
            self._ended(self.process.death().message, now, say)
        if self.process is None and not self._is_too_soon(now):
            self._start(now, say)

    def request_stop(self) -> None:
        if self.process is not None:
            self.process.request_stop()

    def close(self) -> None:
        if self.process is not None:
            self.process.stop(GRACE_S)
            self.process = None

    def _start(self, now: float, say: Callable[[str], None]) -> None:
        args = ["--home", str(self._home), "--socket", str(self.socket), "--key", str(self._key)]
        self._started_at = now
        try:
            self.process = Process("control", CONTROL_API, args, self._log, self._wake)
        except OSError as error:
            self._ended(f"the control process cannot be started: {error.strerror}", now, say)

    def _ended(self, why: str, now: float, say: Callable[[str], None]) -> None:
        """Record how long it lived; report a reason only once in a row."""
        self.process = None
        self._lives = [*self._lives, ReplicaLife(now, now - self._started_at)][-MAX_LIVES:]
        if why != self._last_reason:
            self._last_reason = why
            say(f"{why}; starting it again")

    def _is_too_soon(self, now: float) -> bool:
        return bool(self._lives) and now - self._lives[-1].ended_at < restart_delay_s(self._lives)


def write_key(socket: Path) -> Path:
    """Create the key by which gateways authenticate to the process; it is in no argument and no log."""
    file = socket.with_suffix(".key")
    file.touch(mode=0o600)
    file.write_text(secrets.token_urlsafe(32))
    return file
