"""The gateways of a service: they share one port, and each is restarted when it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windlass.spec.processes import GATEWAY
from windlass.spec.serve import Serve
from windlass.supervisor.processes import GatewayProcess
from windlass.supervisor.service_spec import gateway_args, write_settings

MAX_DEATHS = 5
WITHIN_S = 60.0
"""If gateways end MAX_DEATHS times within this time, the service fails."""
GRACE_S = 10.0


class Gateways:
    """Gateway processes by number. `folder` holds the supervisor's socket, and their settings."""

    def __init__(
        self,
        serve: Serve,
        folder: Path,
        logs: Path,
        wake: Callable[[], None],
        control: Path | None = None,
    ) -> None:
        self.all: list[GatewayProcess] = []
        self._control = control
        self._serve, self._folder, self._logs, self._wake = serve, folder, logs, wake
        self._deaths: list[float] = []

    def start_first(self) -> None:
        """Start the first, which binds the port."""
        self._start(0)

    def start_others(self) -> None:
        """Start the rest, on the port of the first."""
        self._serve = self._serve.model_copy(update={"port": self.all[0].port})
        for number in range(1, self._serve.gateways):
            self._start(number)

    def restart_ended(self, now: float, say: Callable[[str], None], *, may_restart: bool) -> None:
        """Restart gateways that have ended; raise the reason if they may not restart or end too often."""
        for number, gateway in enumerate(self.all):
            if gateway.exit_code is None:
                continue
            death = gateway.death()
            self._deaths = [at for at in self._deaths if now - at < WITHIN_S] + [now]
            if not may_restart or len(self._deaths) >= MAX_DEATHS:
                raise death
            say(f"{death.message}; starting it again")
            self._start(number)

    def close(self) -> None:
        """Stop all of them at once; each first finishes its answers."""
        for gateway in self.all:
            gateway.request_stop()
        for gateway in self.all:
            gateway.stop(GRACE_S)

    def _start(self, number: int) -> None:
        name = f"gateway-{number + 1}"
        settings = write_settings(self._serve, self._folder / "serve.json")
        args = gateway_args(
            name, self._folder / "steering", settings, self._folder / "figures", self._control
        )
        log = self._logs / "gateway.log"
        gateway = GatewayProcess(name, GATEWAY, args, log, self._wake)
        self.all[number : number + 1] = [gateway]
