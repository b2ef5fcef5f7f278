"""The processes of a service: engines and gateways, each with what it told and how it ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess, cause_of, tail_of
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.supervisor.liveness_probe import LivenessProbe
from windlass.supervisor.state import Phase, RunningReplica

LAST_WORDS_S = 1.0
STOP_S = 10.0


class Process:
    """A process whose lines are read as they come, so that its pipe is never full."""

    def __init__(
        self, name: str, module: str, args: Sequence[str], log: Path, wake: Callable[[], None]
    ) -> None:
        self.name = name
        self._process = LocalProcess(name, module, args, log)
        self._wake = wake
        self._told: WindlassError | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.look()

    def hear(self, event: dict[str, Any]) -> None:
        """Take one line that it told."""

    def death(self) -> WindlassError:
        """Return why it ended, in its own words if it had any."""
        self._listener.join(LAST_WORDS_S)
        code = self._process.exit_code
        assert code is not None
        return self._told or ProcessFailed(
            f"the {self.name} process {cause_of(code)}", hint=tail_of(self._process.log)
        )

    def kill(self) -> None:
        self._process.kill()

    def ask_to_end(self) -> None:
        if self._process.exit_code is None:
            self._process.interrupt()

    def stop(self, grace_s: float = STOP_S) -> None:
        self._process.stop(grace_s)

    def _listen(self) -> None:
        try:
            with contextlib.suppress(ValueError):  # the pipe was closed while we stop
                for event in self._process.events():
                    self.hear(event)
        except WindlassError as error:
            self._told = error
        self._wake()


class GatewayProcess(Process):
    """A gateway; `url` is known once it listens."""

    url = ""
    port = 0

    def hear(self, event: dict[str, Any]) -> None:
        if "listening" in event:
            self.port = int(event["listening"]["port"])
            self.url = str(event["listening"]["url"])
            self._wake()


class EngineReplica(Process):
    """An engine, and what the supervisor holds of it; gateways reach it by its door, which is its socket."""

    def __init__(
        self,
        name: str,
        version: str,
        command: tuple[str, Sequence[str]],
        socket: Path,
        log: Path,
        wake: Callable[[], None],
        now: float,
        door: Path,
    ) -> None:
        module, args = command
        super().__init__(name, module, args, log, wake)
        self.version, self.socket, self.door = version, socket, door
        self.phase: Phase = "starting"
        self.since = self.started_at = now
        self.ready_at: float | None = None
        self.why = ""
        self.suspected = False
        self.drains_by: int | None = None
        """The first routing table that says it drains."""
        self.shunned_since: float | None = None
        self._asked_at: float | None = None
        self.pulse = LivenessProbe(socket, wake)

    def enter(self, phase: Phase, now: float, why: str = "") -> None:
        if phase != self.phase:
            self.phase, self.since = phase, now
            if phase == "ready" and self.ready_at is None:
                self.ready_at = now
        self.why = why

    def end_in_time(self, now: float) -> None:
        """Ask it to end; one that was asked and does not is ended by force."""
        if self._asked_at is None:
            self._asked_at = now
            self.ask_to_end()
        elif now - self._asked_at > STOP_S:
            self.kill()

    def seen(self) -> RunningReplica:
        return RunningReplica(
            self.name, self.version, self.door, self.pid, self.phase, self.since, self.started_at,
            self.pulse.in_flight, self.why, self.shunned_since,
        )  # fmt: skip

    def close(self) -> None:
        """Forget everything that belonged to a process which has ended."""
        self.pulse.close()
        self.socket.unlink(missing_ok=True)
