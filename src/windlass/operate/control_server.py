"""The control API on a port of this machine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn

from windlass.operate.control_api import build_app
from windlass.serve.gateway.server import bind, settings, url_of
from windlass.spec.serve import is_loopback


def serve_control(home: Path, host: str, port: int, listening: Callable[[str, bool], None]) -> None:
    """Answer until interrupted; `listening` hears the address, and whether it is for this machine alone."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="control: %(message)s")
    listener = bind(host, port)
    loopback = is_loopback(listener.getsockname()[0])
    server = uvicorn.Server(uvicorn.Config(build_app(home, loopback=loopback), **settings()))
    listening(url_of(host, listener), loopback)
    server.run(sockets=[listener])
