"""The gateways of a service: they share one port, and each is started again when it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windlass.spec.processes import GATEWAY
from windlass.spec.serve import Serve
from windlass.supervisor.processes import GatewayProcess
from windlass.supervisor.service_spec import gateway_args, write_settings

MAX_DEATHS = 5
WITHIN_S = 60.0
"""Gateways that end MAX_DEATHS times in so long are beyond help."""
GRACE_S = 10.0


class Gateways:
    """Processes by their numbers. `folder` holds the socket of the supervisor, and their settings."""

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
        """Start the one that takes the port."""
        self._start(0)

    def start_others(self) -> None:
        """Start the rest, on the port that the first has found."""
        self._serve = self._serve.model_copy(update={"port": self.all[0].port})
        for number in range(1, self._serve.gateways):
            self._start(number)

    def revive(self, now: float, say: Callable[[str], None], *, hopeful: bool) -> None:
        """Start again what has ended; raise why it did, where there is no hope."""
        for number, gateway in enumerate(self.all):
            if gateway.exit_code is None:
                continue
            death = gateway.death()
            self._deaths = [at for at in self._deaths if now - at < WITHIN_S] + [now]
            if not hopeful or len(self._deaths) >= MAX_DEATHS:
                raise death
            say(f"{death.message}; starting it again")
            self._start(number)

    def close(self) -> None:
        """End all of them at once; each first finishes its answers."""
        for gateway in self.all:
            gateway.ask_to_end()
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
