"""The contenders of `windlass bench gateway`, each one process on its own core.

    ours       the gateway as users start it, in front of the mock engine
    bare       gateway_bare.py, in front of the same mock engine
    canned     the same application, which answers from memory
    litellm    LiteLLM's proxy in its own environment (bench/peers), in front of another canned one

Backends and clients run on the other cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from windlass.cluster.launch.local_process import LocalProcess
from windlass.lab.bench.contenders import Peer
from windlass.lab.bench.gateway_load import LOGS, pin
from windlass.lab.bench.gateway_model import VOCABULARY, write_words
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.errors import ProcessFailed
from windlass.spec.processes import BARE_GATEWAY, GATEWAY, MOCK_ENGINE
from windlass.store.database import sqlite_url

MODEL = "mock"
ENGINE = "engine.sock"
START_S = 120.0
LOOK_EVERY_S = 0.1
KEY = "sk-bench-0123456789abcdef"
"""The key of LiteLLM; ours makes its own."""
MANY = 100_000
LIMITS = {
    "key": {
        "requests_per_second": 1e6,
        "tokens_per_minute": 10**9,
        "tokens_per_day": 10**12,
        "concurrent": MANY,
    },
    "wait": 60,
}
"""Limits of all kinds, so that all are counted; too high to be reached."""


@dataclass(frozen=True)
class Cores:
    """The cores of servers and of clients; the same core on a machine with one."""

    server: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of_machine(cls) -> Cores:
        usable = sorted(os.sched_getaffinity(0))
        return cls((usable[0],), tuple(usable[1:])) if len(usable) > 1 else cls((), ())


@dataclass(frozen=True)
class GatewayContender:
    """A running server."""

    name: str
    url: str
    key: str
    pid: int


@contextmanager
def ours(cores: Cores, scratch: Path, logs: Path) -> Iterator[GatewayContender]:
    """Start the mock engine and our gateway in front of it, with keys and limits that are never reached."""
    words, path = write_words(scratch / "model"), scratch / ENGINE
    settings, key = _settings_and_key(scratch)
    mock = ["--socket", str(path), "--name", MODEL, "--vocabulary", str(VOCABULARY)]
    gateway = ["--model", str(words), "--name", MODEL, "--socket", str(path), "--settings", str(settings)]
    with ExitStack() as stack:
        engine = _start("mock", MOCK_ENGINE, mock, logs)
        stack.enter_context(engine)
        pin(engine.pid, cores.others)
        _listening(engine)
        process = _start("ours", GATEWAY, gateway, logs)
        stack.enter_context(process)
        pin(process.pid, cores.server)
        url = str(_listening(process)["url"])
        _wait_for(f"{url}/readyz")
        yield GatewayContender("ours", url, key, process.pid)


@contextmanager
def bare(
    name: str, cores: tuple[int, ...], logs: Path, engine: Path | None = None
) -> Iterator[GatewayContender]:
    """Start the bare application, with or without an engine."""
    arguments = [] if engine is None else ["--socket", str(engine)]
    with _start(name, BARE_GATEWAY, arguments, logs) as process:
        pin(process.pid, cores)
        port = _listening(process)["port"]
        yield GatewayContender(name, f"http://127.0.0.1:{port}", KEY, process.pid)


@contextmanager
def litellm(peer: Peer, cores: Cores, scratch: Path, logs: Path) -> Iterator[GatewayContender]:
    """Start LiteLLM's proxy with one worker and its key check, in front of a bare application."""
    with bare("behind", cores.others, logs) as behind, (logs / "bench-gateway-litellm.log").open("ab") as log:
        config, port = scratch / "litellm.yaml", _free_port()
        config.write_text(json.dumps(_proxy_settings(behind.url)))  # JSON is YAML
        program = peer.folder / "bin" / "litellm"
        command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        popen = subprocess.Popen(
            [*command, "--num_workers", "1"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health/liveliness", popen)
            pin(popen.pid, cores.server)
            yield GatewayContender("litellm", f"http://127.0.0.1:{port}", KEY, popen.pid)
        finally:
            popen.terminate()
            popen.wait()


def _settings_and_key(scratch: Path) -> tuple[Path, str]:
    """Write the table [serve], and make a user's key."""
    state, path = sqlite_url(scratch / "service.db"), scratch / "serve.json"
    path.write_text(json.dumps({"port": 0, "state": state, "queue": MANY, "limits": LIMITS}))
    _, token = ApiKeys(open_state(state)).make("bench", Actor("", "the bench"))
    return path, token


def _proxy_settings(behind: str) -> dict[str, object]:
    how = {"model": f"openai/{MODEL}", "api_base": f"{behind}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": how}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0},
    }


def _start(name: str, module: str, arguments: list[str], logs: Path) -> LocalProcess:
    return LocalProcess(name, module, arguments, logs / f"bench-gateway-{name}.log")


def _listening(process: LocalProcess) -> dict[str, object]:
    for event in process.events():
        if "listening" in event:
            found: dict[str, object] = event["listening"]
            return found
    process.check()
    raise ProcessFailed(f"{process.name} ended before it listened", hint=f"see {process.log}")


def _wait_for(url: str, popen: subprocess.Popen[bytes] | None = None) -> None:
    """Poll until the answer is 200; raise if the process has ended."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and (popen is None or popen.poll() is None):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=START_S) as answer:
            if answer.status == HTTPStatus.OK:
                return
        time.sleep(LOOK_EVERY_S)
    raise ProcessFailed(f"{url} did not become ready", hint=LOGS)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
