"""Lends the SDK tests the gateway and scripted engine of tests/serve/gateway, and the runs of tests/operate.

Tests of what a client does are written once, against `opened`: a blocking client as it is, an awaiting one
run in a loop of its own. Time is played: `Played` is the clock, and sleeping moves it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from windlass.control.api.app import build_app
from windlass.control.api.control_keys import ControlKeys
from windlass.http.listener import bind, settings
from windlass.sdk import (
    AsyncClient,
    AsyncJobs,
    AsyncPlans,
    AsyncStream,
    Awaiting,
    Blocking,
    Client,
    Jobs,
    Plans,
)


def _lent(room: str) -> ModuleType:
    source = Path(__file__).parent.parent / room / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{room.replace('/', '_')}_under_test", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_gateway = _lent("serve/gateway")
model_dir = _gateway.model_dir
socket_path = _gateway.socket_path
shared_engine = _gateway.shared_engine
engine = _gateway.engine
start_shared = _gateway.start_shared
start_gateway = _gateway.start_gateway
shared_gateway = _gateway.shared_gateway
gateway = _gateway.gateway
impatient = _gateway.impatient
given_keys = _gateway.given_keys
shared_guarded = _gateway.shared_guarded
guarded = _gateway.guarded

_operate = _lent("runs")
start = _operate.start
tell = _operate.tell
finish = _operate.finish


class Played:
    """A clock that only sleeping moves; `meanwhile` is what happens while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.meanwhile()

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


class Waited:
    """An awaiting client, for tests that wait."""

    def __init__(self, client: Any, runner: asyncio.Runner) -> None:
        self._client, self._runner = client, runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            if isinstance(made, AsyncStream):
                return WaitedStream(made, self._runner)
            return self._runner.run(made)

        return call


class WaitedStream:
    """A stream of an awaiting client, for tests that wait."""

    def __init__(self, stream: AsyncStream[Any, Any], runner: asyncio.Runner) -> None:
        self._stream, self._runner = stream, runner

    def __iter__(self) -> WaitedStream:
        return self

    def __next__(self) -> Any:
        async def step() -> Any:
            return await self._stream.__anext__()

        try:
            return self._runner.run(step())
        except StopAsyncIteration:
            raise StopIteration from None

    def finish(self) -> Any:
        return self._runner.run(self._stream.finish())

    def close(self) -> None:
        self._runner.run(self._stream.close())

    @property
    def result(self) -> Any:
        return self._stream.result


class Opener:
    """Opens clients of one kind, with a clock of their own."""

    def __init__(self, kind: str, runner: asyncio.Runner) -> None:
        self.kind, self.time = kind, Played()
        self._runner = runner
        self._opened: list[Any] = []

    def client(self, where: Any, **options: Any) -> Any:
        return self._open(Client, AsyncClient, where, **options)

    def jobs(self, where: Any, key: str, **options: Any) -> Any:
        return self._open(Jobs, AsyncJobs, where, key, **options)

    def plans(self, where: Any, key: str, **options: Any) -> Any:
        return self._open(Plans, AsyncPlans, where, key, **options)

    def close(self) -> None:
        for client in self._opened:
            client.close()

    def _open(self, waits: Any, awaited: Any, *args: Any, **options: Any) -> Any:
        draw = random.Random(5).getrandbits
        if self.kind == "blocking":
            driver = Blocking(clock=self.time.clock, sleep=self.time.sleep, draw=draw)
            client = waits(*args, driver=driver, **options)
        else:
            waiting = Awaiting(clock=self.time.clock, sleep=self.time.sleep_async, draw=draw)
            client = Waited(awaited(*args, driver=waiting, **options), self._runner)
        self._opened.append(client)
        return client


@pytest.fixture
def blocking() -> Iterator[Opener]:
    with asyncio.Runner() as runner:
        opener = Opener("blocking", runner)
        yield opener
        opener.close()


@pytest.fixture(params=["blocking", "awaiting"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opener]:
    with asyncio.Runner() as runner:
        opener = Opener(request.param, runner)
        yield opener
        opener.close()


class Proxy:
    """Passes connections on to a server; each may be cut after so many bytes of what the server says.

    `cuts` has one number for each connection to come, None lets it live. A proxy that is down takes no more.
    """

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self.cuts: list[int | None] = []
        self.dies = False
        """Whether the first cut is the end of it all."""
        self.met = 0
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self.down()
        for held in self._held:
            _shut(held)
        for thread in self._threads:
            thread.join(20)

    def down(self) -> None:
        """Take no more connections."""
        _shut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.met += 1
            self._held.append(client)
            cut = self.cuts.pop(0) if self.cuts else None
            thread = threading.Thread(target=self._pass, args=(client, cut), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass(self, client: socket.socket, cut: int | None) -> None:
        left = cut
        with client, socket.create_connection(self._target) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], 20)
                for source in ready:
                    try:
                        data = source.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    if source is client:
                        server.sendall(data)
                        continue
                    client.sendall(data if left is None else data[:left])
                    left = None if left is None else left - len(data)
                    if left is not None and left <= 0:
                        self._cut(client)
                        return
                if not ready:
                    return

    def _cut(self, client: socket.socket) -> None:
        if self.dies:
            self.down()
        # The peer hears a reset, as when a machine goes.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _shut(held: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        held.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    made: list[Proxy] = []

    def make(url: str) -> Proxy:
        made.append(Proxy(url))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def control_app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return build_app(tmp_path_factory.mktemp("control"))


@pytest.fixture(scope="session")
def control_url(control_app: FastAPI) -> Iterator[str]:
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(control_app, **settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def control(control_app: FastAPI, control_url: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a control API whose runs are this test's, and a key."""
    home, control_app.state.home = control_app.state.home, tmp_path
    keys = ControlKeys(home)
    yield control_url, keys.make("ada")
    keys.drop("ada")
    control_app.state.home = home
