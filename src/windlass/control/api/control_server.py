"""The control API on a port of this machine, or on a Unix socket for the gateways of a service."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from windlass.control.api.app import build_app
from windlass.control.api.control_keys import GatewayKey
from windlass.control.plane.control_plane import ControlPlane, ControlPlaneConfig
from windlass.http.listener import bind, bounded_settings, settings, url_of
from windlass.http.transport import HttpConnections
from windlass.spec.serve import Serve, Transport, is_loopback

CONNECTIONS = 2048
"""Maximum at once; each has a timeout for its headers and between requests, so that none stays idle."""
LAST_WORDS_S = 1
"""For responses in progress when a service ends; a client that follows a run would never finish."""


def serve_control(
    home: Path,
    host: str,
    port: int,
    listening: Callable[[str, bool], None],
    config: ControlPlaneConfig | None = None,
) -> None:
    """Serve until interrupted; `listening` is called with the address, and whether it is a loopback address.

    With a `config` there is a queue, and this process may lead it.
    """
    _log()
    listener = bind(host, port)
    loopback, url = is_loopback(listener.getsockname()[0]), url_of(host, listener)
    plane = ControlPlane(config, url) if config is not None else None
    app = build_app(home, loopback=loopback, plane=plane)
    server = BoundedServer(app)
    listening(url, loopback)
    server.run(sockets=[listener])


class BoundedServer(uvicorn.Server):
    """Closes connections that are too slow to send a request, as the gateway does."""

    def __init__(self, app: FastAPI) -> None:
        self._connections = HttpConnections(Transport(connections=CONNECTIONS))
        super().__init__(uvicorn.Config(app, **bounded_settings(Serve(), self._connections)))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._connections.watch())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._watch.cancel()


def serve_gateways(home: Path, path: Path, key: GatewayKey, listening: Callable[[], None]) -> None:
    """Serve the gateways of a service until interrupted, on a socket that only its owner can open."""
    _log()
    app = build_app(home, keys=key)
    listener = bind_socket(path)
    own = {"loop": "asyncio", "timeout_graceful_shutdown": LAST_WORDS_S}  # uvloop takes any socket for TCP
    server = uvicorn.Server(uvicorn.Config(app, **settings() | own))
    listening()
    server.run(sockets=[listener])


def bind_socket(path: Path) -> socket.socket:
    """Bind a Unix socket; replace one that an ended process left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def _log() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="control: %(message)s")
