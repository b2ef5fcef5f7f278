"""The processes of a service: engines and gateways, their events and how they end."""

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
    """A process whose output is read by a thread, so that its pipe is never full."""

    def __init__(
        self, name: str, module: str, args: Sequence[str], log: Path, wake: Callable[[], None]
    ) -> None:
        self.name = name
        self._process = LocalProcess(name, module, args, log)
        self._wake = wake
        self._error: WindlassError | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.look()

    def receive(self, event: dict[str, Any]) -> None:
        """Handle one event of the process."""

    def death(self) -> WindlassError:
        """Return why it ended: the error that it printed, or its exit code."""
        self._listener.join(LAST_WORDS_S)
        code = self._process.exit_code
        assert code is not None
        return self._error or ProcessFailed(
            f"the {self.name} process {cause_of(code)}", hint=tail_of(self._process.log)
        )

    def kill(self) -> None:
        self._process.kill()

    def request_stop(self) -> None:
        if self._process.exit_code is None:
            self._process.interrupt()

    def stop(self, grace_s: float = STOP_S) -> None:
        self._process.stop(grace_s)

    def _listen(self) -> None:
        try:
            with contextlib.suppress(ValueError):  # the pipe was closed while we stop
                for event in self._process.events():
                    self.receive(event)
        except WindlassError as error:
            self._error = error
        self._wake()


class GatewayProcess(Process):
    """A gateway; `url` is known once it listens."""

    url = ""
    port = 0

    def receive(self, event: dict[str, Any]) -> None:
        if "listening" in event:
            self.port = int(event["listening"]["port"])
            self.url = str(event["listening"]["url"])
            self._wake()


class EngineReplica(Process):
    """An engine process and its state in the supervisor; gateways reach it by `gateway_socket`."""

    def __init__(
        self,
        name: str,
        version: str,
        command: tuple[str, Sequence[str]],
        socket: Path,
        log: Path,
        wake: Callable[[], None],
        now: float,
        gateway_socket: Path,
    ) -> None:
        module, args = command
        super().__init__(name, module, args, log, wake)
        self.version, self.socket, self.gateway_socket = version, socket, gateway_socket
        self.phase: Phase = "starting"
        self.since = self.started_at = now
        self.ready_at: float | None = None
        self.why = ""
        self.suspected = False
        self.drains_by: int | None = None
        """The first revision of the routing table that says it drains."""
        self.drain_known_at: float | None = None
        self._stop_requested_at: float | None = None
        self.liveness = LivenessProbe(socket, wake)

    def enter(self, phase: Phase, now: float, why: str = "") -> None:
        if phase != self.phase:
            self.phase, self.since = phase, now
            if phase == "ready" and self.ready_at is None:
                self.ready_at = now
        self.why = why

    def stop_or_kill(self, now: float) -> None:
        """Ask it to stop; kill it if it was asked STOP_S ago."""
        if self._stop_requested_at is None:
            self._stop_requested_at = now
            self.request_stop()
        elif now - self._stop_requested_at > STOP_S:
            self.kill()

    def snapshot(self) -> RunningReplica:
        return RunningReplica(
            self.name, self.version, self.gateway_socket, self.pid, self.phase, self.since, self.started_at,
            self.liveness.in_flight, self.why, self.drain_known_at,
        )  # fmt: skip

    def close(self) -> None:
        """Release the probe and the socket of a process that has ended."""
        self.liveness.close()
        self.socket.unlink(missing_ok=True)
