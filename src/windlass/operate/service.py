"""An engine and a gateway, started together and watched.

The engine computes and may crash; the gateway holds the clients' connections and does not. When the
engine dies it is started again, and the gateway finds the new one at the same socket.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from windlass.cluster.on_local import LocalProcess
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.job import Serve

POLL_S = 0.1
MOST_QUICK_DEATHS = 5
QUICK_DEATH_S = 10.0


@dataclass(frozen=True)
class Offer:
    """What to serve."""

    name: str
    model: Path
    serve: Serve
    aliases: tuple[str, ...] = ()


class Service:
    """A running service. As a context manager it is gone when the block ends."""

    def __init__(self, offer: Offer, logs: Path) -> None:
        self.offer, self.logs = offer, logs
        self.url = ""
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-"))
        self._deaths: list[float] = []
        self._engine: LocalProcess | None = None
        self._gateway: LocalProcess | None = None
        self._told: WindlassError | None = None

    def __enter__(self) -> Service:
        try:
            self._gateway = self._start_gateway()
            self._engine = self._start_engine()
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in (self._gateway, self._engine):
            if process is not None:
                process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def watch(self, say: Callable[[str], None]) -> None:
        """Keep the service up until interrupted."""
        assert self._gateway is not None
        while self._gateway.exit_code is None:
            self._revive_engine(say)
            time.sleep(POLL_S)
        self._gateway.check()

    def _start_gateway(self) -> LocalProcess:
        serve = self.offer.serve
        args = ["--model", str(self.offer.model), "--name", self.offer.name, "--socket", str(self._socket)]
        args += ["--host", serve.host, "--port", str(serve.port), "--queue", str(serve.queue)]
        for alias in self.offer.aliases:
            args += ["--alias", alias]
        process = LocalProcess("gateway", "windlass.serve.gateway", args, self.logs / "gateway.log")
        for event in process.events():
            if "listening" in event:
                self.url = str(event["listening"]["url"])
                return process
        process.check()
        raise ProcessFailed("the gateway ended before it listened")

    def _start_engine(self) -> LocalProcess:
        serve = self.offer.serve
        args = ["--model", str(self.offer.model), "--name", self.offer.name, "--socket", str(self._socket)]
        args += ["--slots", str(serve.slots)]
        if serve.threads is not None:
            args += ["--threads", str(serve.threads)]
        process = LocalProcess("engine", "windlass.serve.engine", args, self.logs / "engine.log")
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: LocalProcess) -> None:
        """Keep the engine's pipe empty and remember the error that it may end with."""
        try:
            for _ in process.events():
                pass
        except WindlassError as error:
            self._told = error
        except ValueError:
            return  # the pipe was closed while we stop

    def _await_ready(self) -> None:
        assert self._engine is not None
        while not _answers(f"{self.url}/readyz"):
            self._raise_if_dead()
            time.sleep(POLL_S)

    def _raise_if_dead(self) -> None:
        assert self._engine is not None
        assert self._gateway is not None
        if self._gateway.exit_code is not None:
            self._gateway.check()
        if self._engine.exit_code is not None:
            time.sleep(POLL_S)  # its last word may still be on the way
            if self._told is not None:
                raise self._told
            self._engine.check(frozenset())

    def _revive_engine(self, say: Callable[[str], None]) -> None:
        assert self._engine is not None
        if self._engine.exit_code is None:
            return
        now = time.monotonic()
        self._deaths = [t for t in self._deaths if now - t < QUICK_DEATH_S] + [now]
        if len(self._deaths) >= MOST_QUICK_DEATHS:
            raise self._told or ProcessFailed(
                f"the engine died {len(self._deaths)} times in {QUICK_DEATH_S:.0f} s",
                hint=f"its log is {self._engine.log}",
            )
        say(f"the engine ended with code {self._engine.exit_code}; starting it again")
        self._engine = self._start_engine()

    @property
    def _socket(self) -> Path:
        return self._folder / "engine.sock"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
