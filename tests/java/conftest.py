"""Lends the gateway and the scripted engine of tests/serve/gateway; compiles the Java SDK once.

Between a program and the gateway may lie a BrokenWay: a TCP proxy that cuts connections in mid-answer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

_source = Path(__file__).parent.parent / "serve" / "gateway" / "conftest.py"
_spec = importlib.util.spec_from_file_location("gateway_under_test", _source)
assert _spec is not None
assert _spec.loader is not None
_lent = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lent)

model_dir = _lent.model_dir
socket_path = _lent.socket_path
shared_engine = _lent.shared_engine
engine = _lent.engine
start_shared = _lent.start_shared
start_gateway = _lent.start_gateway
shared_gateway = _lent.shared_gateway
gateway = _lent.gateway
given_keys = _lent.given_keys
shared_guarded = _lent.shared_guarded
guarded = _lent.guarded

JAVA = Path(__file__).parents[2] / "java"
PATIENCE_S = 60.0
QUICK_START = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
"""Programs of these tests live for a second; they are started quickly rather than made fast."""


PORTION = 65536
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection instead of ending it politely."""

Cut = Callable[[bytes], int | None]
"""What came so far of the answers -> how much of it is let through before the cut, or None for all of it."""


@dataclass(frozen=True)
class Jdk:
    """The SDK as java/build made it, and the programs to run it with."""

    out: Path
    report: str
    """What the unit tests said."""

    @property
    def path(self) -> str:
        return f"{self.out / 'classes'}:{self.out / 'tests'}"

    def start(self, *arguments: str, key: str | None = None) -> subprocess.Popen[str]:
        """Start a program of the test classes or a source file."""
        environment = {name: value for name, value in os.environ.items() if name != "WINDLASS_KEY"}
        return subprocess.Popen(
            ["java", *QUICK_START, "-ea", "-cp", self.path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment if key is None else environment | {"WINDLASS_KEY": key},
        )

    def run(self, *arguments: str, key: str | None = None) -> str:
        """Run a program to its end, which must be a good one."""
        process = self.start(*arguments, key=key)
        try:
            told, complaint = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()  # one that never ends must not be waited for
        assert process.returncode == 0, complaint + told
        return told


class Story:
    """A running story: tells lines of JSON, and may wait for a word."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.told: dict[str, Any] = {}

    def wait(self) -> None:
        """Read until the story waits for us."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard = json.loads(line)
            if "waiting" in heard:
                return
            self.told |= heard
        raise AssertionError(f"it never waited: {self.end()}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Read what is left; a story that ends badly has failed."""
        rest, complaint = self._process.communicate(timeout=PATIENCE_S)
        for line in rest.splitlines():
            self.told |= json.loads(line)
        assert self._process.returncode == 0, f"{self.told} {complaint}"
        return self.told


class BrokenWay:
    """Passes connections on to a server; the first ones break as `cuts` say, the others do not."""

    def __init__(self, url: str, cuts: list[Cut], *, then_closed: bool = False) -> None:
        self._target = urlsplit(url)
        self._cuts = cuts
        self._then_closed = then_closed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                number, self.connections = self.connections, self.connections + 1
                cut = self._cuts[number] if number < len(self._cuts) else None
                server = socket.create_connection((self._target.hostname or "", self._target.port or 0))
                threading.Thread(target=_pass, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, cut), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket, cut: Cut | None) -> None:
        _pass(server, client, cut)
        if cut is not None and self._then_closed:
            self.close()


def _pass(source: socket.socket, target: socket.socket, cut: Cut | None) -> None:
    """Pass bytes on until either side ends, or the cut."""
    heard, passed = b"", 0
    with contextlib.suppress(OSError):  # either side may be gone
        while portion := source.recv(PORTION):
            heard += portion
            end = cut(heard) if cut is not None else None
            target.sendall(heard[passed:end])
            passed = len(heard)
            if end is not None:
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                break
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.fixture(scope="session")
def jdk(tmp_path_factory: pytest.TempPathFactory) -> Jdk:
    """Compile the SDK and its tests with every warning an error, and run the unit tests."""
    if shutil.which("javac") is None:
        pytest.skip("no javac on PATH; Debian has openjdk-17-jdk-headless")
    out = tmp_path_factory.mktemp("java")
    built = subprocess.run(
        [JAVA / "build", "--test", "--out", out],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr + built.stdout
    return Jdk(out, built.stdout)


@pytest.fixture
def begin(jdk: Jdk) -> Iterator[Callable[..., Story]]:
    """Start stories of java/src/test; all end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(name: str, *sites: str, key: str | None = None) -> Story:
        processes.append(jdk.start("dev.windlass.Story", name, *sites, key=key))
        return Story(processes[-1])

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def tell(begin: Callable[..., Story]) -> Callable[..., dict[str, Any]]:
    """Tell a story from its beginning to its end."""

    def tell(name: str, *sites: str, key: str | None = None) -> dict[str, Any]:
        return begin(name, *sites, key=key).end()

    return tell


@pytest.fixture
def break_way() -> Iterator[Callable[..., BrokenWay]]:
    """Lay ways that break; all are closed after the test."""
    ways: list[BrokenWay] = []

    def lay(url: str, *cuts: Cut, then_closed: bool = False) -> BrokenWay:
        ways.append(BrokenWay(url, list(cuts), then_closed=then_closed))
        return ways[-1]

    yield lay
    for way in ways:
        way.close()
