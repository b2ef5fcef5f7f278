"""The server under the app: it listens, tells its parent so, and stops in order.

Input: the app and what its server shares with it. Output: one line of JSON once it accepts connections.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import os
import socket
import stat
import time
from dataclasses import dataclass
from typing import Any

import uvicorn

from windlass.serve.gateway.access import Access
from windlass.serve.gateway.fleet.fleet import Fleet
from windlass.serve.gateway.metrics import Metrics
from windlass.serve.gateway.transport import BoundedProtocol, Connections
from windlass.spec.door import emit
from windlass.spec.errors import BadInput, InUse
from windlass.spec.serve import Serve

DRAIN_S = 5.0
DRAIN_POLL_S = 0.05
SEND_BUFFER_BYTES = 262144
"""What the kernel keeps for a client that does not read; left alone it grows to megabytes for each."""
LAST_WORDS_S = 2
"""After the drain, streams get an error event; so long they may take to deliver it."""


@dataclass(frozen=True)
class Running:
    """What belongs to a server that runs, beside its app."""

    fleet: Fleet
    metrics: Metrics
    access: Access
    connections: Connections
    url: str
    shared: bool = False
    """Whether other gateways take the connections that this one no longer accepts."""


class GracefulServer(uvicorn.Server):
    """Tells its parent that it listens, and its clients that it stops."""

    def __init__(self, config: uvicorn.Config, running: Running) -> None:
        super().__init__(config)
        self._running = running
        self._parent = os.getppid()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        _watch_parent(self)
        self._watch = asyncio.create_task(self._running.connections.watch())
        emit({"listening": {"url": self._running.url, "port": sockets[0].getsockname()[1]}})

    async def on_tick(self, counter: int) -> bool:
        if os.getppid() != self._parent:
            self.should_exit = True
        self._running.metrics.connections.set(len(self._running.connections))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        running = self._running
        running.access.draining = True
        last = asyncio.get_running_loop().call_later(
            DRAIN_S, running.fleet.fail_all, "shutting_down", "the server is stopping; try again shortly"
        )
        if not running.shared:
            await self._send_away()
        await super().shutdown(sockets)
        last.cancel()
        self._watch.cancel()

    async def _send_away(self) -> None:
        """Go on listening while answers are written, so that others are told when to come back."""
        deadline = time.monotonic() + DRAIN_S
        while self.server_state.tasks and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(DRAIN_POLL_S)


def settings() -> dict[str, Any]:
    """Return how uvicorn runs: quietly, and without trusting headers about who the client is."""
    return {
        "loop": "uvloop",
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": int(DRAIN_S) + LAST_WORDS_S,
    }


def bounded_settings(serve: Serve, connections: Connections) -> dict[str, Any]:
    """Return how the gateway's own uvicorn runs: with bounds on every connection, and TLS if asked for."""
    tls = {"ssl_certfile": serve.tls_certificate, "ssl_keyfile": serve.tls_key}
    bounds = {
        "http": functools.partial(BoundedProtocol, connections),
        "timeout_keep_alive": math.ceil(serve.transport.idle_s),
    }
    return settings() | bounds | (tls if serve.tls_certificate is not None else {})


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Take the port, or say who cannot have it; `shared` with other gateways, which all must say so."""
    if not 0 <= port <= 65535:
        raise BadInput(f"port {port}: ports go from 0 to 65535", hint="0 takes any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InUse(
                f"port {port} on {host} is in use by another program",
                hint="choose another with --port, or --port 0 for any free one",
            ) from None
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}", hint="try 127.0.0.1") from None
    return listener


def url_of(host: str, listener: socket.socket, *, secure: bool = False) -> str:
    """Return the address that a person on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if secure else 'http'}://{shown}:{listener.getsockname()[1]}"


def _watch_parent(server: uvicorn.Server) -> None:
    """End when the other end of standard input is closed, if it is a pipe."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            server.should_exit = True

    loop.add_reader(0, look)
