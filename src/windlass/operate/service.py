"""An engine and a gateway, started together and watched.

The engine computes and may crash; the gateway holds the clients' connections and does not. When the
engine dies it is started again, and the gateway finds the new one at the same socket.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from windlass.cluster.on_local import LocalProcess
from windlass.spec.errors import BadInput, ProcessFailed, WindlassError
from windlass.spec.serve import Serve

POLL_S = 0.1
MOST_QUICK_DEATHS = 5
QUICK_DEATH_S = 10.0


@dataclass(frozen=True)
class Item:
    """One model, its further names, and its adapters by name."""

    name: str
    model: Path
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """What to serve: a model, and others beside it."""

    name: str
    model: Path
    serve: Serve
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)
    others: tuple[Item, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        return Item(self.name, self.model, self.aliases, self.adapters), *self.others


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
        settings = write_settings(self.offer.serve, self._folder / "serve.json")
        args = gateway_args(self.offer, self._socket, settings)
        process = LocalProcess("gateway", "windlass.serve.gateway", args, self.logs / "gateway.log")
        for event in process.events():
            if "listening" in event:
                self.url = str(event["listening"]["url"])
                return process
        process.check()
        raise ProcessFailed("the gateway ended before it listened")

    def _start_engine(self) -> LocalProcess:
        module, args = engine_command(self.offer, self._socket)
        process = LocalProcess("engine", module, args, self.logs / "engine.log")
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


def write_settings(serve: Serve, file: Path) -> Path:
    """Write the table [serve] where no other user can read it: it may hold the password of a database."""
    file.touch(mode=0o600)
    file.write_text(serve.model_dump_json())
    return file


def gateway_args(offer: Offer, socket: Path, settings: Path) -> list[str]:
    """Return the command line of the gateway."""
    args = ["--socket", str(socket), "--settings", str(settings)]
    for item in offer.items:
        bare = item.name.partition("@")[0]
        args += ["--model", str(item.model), "--name", item.name]
        args += [part for alias in item.aliases for part in ("--alias", f"{bare}@{alias}")]
        args += [part for name in item.adapters for part in ("--adapter", f"{item.name}:{name}")]
    return args


def engine_command(offer: Offer, socket: Path) -> tuple[str, list[str]]:
    """Return the module that computes, and its command line."""
    serve = offer.serve
    args = ["--socket", str(socket), "--slots", str(serve.slots)]
    for item in offer.items:
        args += ["--model", str(item.model), "--name", item.name]
    if serve.engine == "vllm":
        return "windlass.serve.vllm", [*args, *_vllm_args(offer)]
    for item in offer.items:
        named = (f"{item.name}:{name}={path}" for name, path in item.adapters.items())
        args += [part for adapter in named for part in ("--adapter", adapter)]
    given = {"--threads": serve.threads, "--memory": serve.memory, "--precision": serve.precision}
    for option, value in given.items():
        args += [option, str(value)] if value is not None else []
    args += ["--prefix-cache", serve.prefix_cache, "--keys", serve.kv]
    return "windlass.serve.engine", args if serve.drafts else [*args, "--no-drafts"]


def _vllm_args(offer: Offer) -> list[str]:
    if offer.others:
        raise BadInput(
            f"--engine vllm serves one model, not {len(offer.items)}",
            hint="start one service for each, on ports of their own",
        )
    # One text each, because an option's value may begin with a dash.
    args = [f"--executable={offer.serve.engine_executable}", f"--engine-args={offer.serve.engine_args}"]
    return args + [f"--adapter={name}={path}" for name, path in offer.adapters.items()]


def _own() -> ssl.SSLContext:
    """Return what trusts whatever certificate our own gateway has; it is asked over loopback."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=_own()) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
