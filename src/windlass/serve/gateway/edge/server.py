"""The HTTP server under the app: it listens, reports that to its parent, and drains on shutdown.

Input: the app and what the server shares with it. Output: one line of JSON once it accepts connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from dataclasses import dataclass

import uvicorn

from windlass.http.listener import DRAIN_S
from windlass.http.transport import HttpConnections
from windlass.serve.gateway.edge.access import Access
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.protocol.entrypoint import emit

DRAIN_POLL_S = 0.05


@dataclass(frozen=True)
class RunningGateway:
    """What the server shares with its app."""

    fleet: ReplicaFleet
    metrics: Metrics
    access: Access
    connections: HttpConnections
    url: str
    shared: bool = False
    """Whether other gateways listen on the same port and take new connections while this one drains."""


class GracefulServer(uvicorn.Server):
    """Reports to its parent when it listens, and refuses new requests while it drains."""

    def __init__(self, config: uvicorn.Config, running: RunningGateway) -> None:
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
            await self._drain()
        await super().shutdown(sockets)
        last.cancel()
        self._watch.cancel()

    async def _drain(self) -> None:
        """Keep listening until running answers are finished, so that new requests get a 503."""
        deadline = time.monotonic() + DRAIN_S
        while self.server_state.tasks and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(DRAIN_POLL_S)


def _watch_parent(server: uvicorn.Server) -> None:
    """Stop the server when standard input is closed, if it is a pipe."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            server.should_exit = True

    loop.add_reader(0, look)
