"""The gateway process: `python -m windlass.serve.gateway --model DIR --name NAME --socket PATH ...`.

On standard output it writes one line of JSON: {"listening": {"url", "port"}} once it accepts connections,
or {"error": {"kind", "message", "hint"}} and exit code 2 (1 if the fault is ours). SIGTERM and SIGINT let
running answers end for DRAIN_S, then exit 0. A parent that is gone ends the process the same way: when
standard input is a pipe, that is its closing; otherwise, the process being handed to another parent.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import uvicorn

from windlass.serve.gateway.app import build_app
from windlass.serve.gateway.engine_link import EngineLink
from windlass.serve.gateway.guard import is_loopback
from windlass.serve.gateway.metrics import Metrics
from windlass.serve.gateway.served import Served, load_served
from windlass.serve.gateway.service import Service
from windlass.spec.door import DoorParser, emit, run_door
from windlass.spec.errors import BadInput, InUse

DRAIN_S = 5.0
LAST_WORDS_S = 2
"""After the drain, streams get an error event; so long they may take to deliver it."""


def main(argv: list[str]) -> int:
    """Serve until told to stop; return the exit code."""
    args = _parse(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="gateway: %(message)s")
    metrics = Metrics()
    link = EngineLink(args.socket, metrics, queue=args.queue)
    models = _models(args)
    listener = bind(args.host, args.port)
    loopback = is_loopback(listener.getsockname()[0])
    app = build_app(Service(models, link, metrics), loopback=loopback)
    server = GracefulServer(uvicorn.Config(app, **settings()), link, url_of(args.host, listener))
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown; by then it must not kill.
        signal.signal(signal_, lambda *_: None)
    server.run(sockets=[listener])
    return 0


class GracefulServer(uvicorn.Server):
    """Tells its parent that it listens, and its clients that it stops."""

    def __init__(self, config: uvicorn.Config, link: EngineLink, url: str) -> None:
        super().__init__(config)
        self._link = link
        self._url = url
        self._parent = os.getppid()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        _watch_parent(self)
        emit({"listening": {"url": self._url, "port": sockets[0].getsockname()[1]}})

    async def on_tick(self, counter: int) -> bool:
        if os.getppid() != self._parent:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        last = loop.call_later(
            DRAIN_S, self._link.fail_all, "shutting_down", "the server is stopping; try again shortly"
        )
        await super().shutdown(sockets)
        last.cancel()


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


def bind(host: str, port: int) -> socket.socket:
    """Take the port, or say who cannot have it."""
    if not 0 <= port <= 65535:
        raise BadInput(f"port {port}: ports go from 0 to 65535", hint="0 takes any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


def url_of(host: str, listener: socket.socket) -> str:
    """Return the address that a person on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{listener.getsockname()[1]}"


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


def _models(args: argparse.Namespace) -> tuple[Served, ...]:
    """Read all models; names, aliases and adapters belong to the model of that name."""
    if len(args.model) != len(args.name):
        raise BadInput(f"{len(args.model)} times --model, but {len(args.name)} times --name")
    models = []
    for folder, name in zip(args.model, args.name, strict=True):
        bare = name.partition("@")[0]
        aliases = [alias for alias in args.alias if alias.partition("@")[0] == bare or "@" not in alias]
        adapters = [adapter for base, _, adapter in (a.rpartition(":") for a in args.adapter) if base == name]
        models.append(load_served(folder, name, aliases, adapters))
    return tuple(models)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = DoorParser(prog="windlass.serve.gateway", description="Serve a model over HTTP.")
    many: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--model", type=Path, action="append", required=True, help="model directory; repeat")
    parser.add_argument("--name", action="append", required=True, help="NAME or NAME@VERSION of each --model")
    parser.add_argument("--alias", **many, help="a further name (NAME@prod, or prod)")
    parser.add_argument("--adapter", **many, help="an adapter, as NAME:ADAPTER with the name of its model")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket of the engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--queue", type=int, default=256, help="answers that may wait for a slot")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_door(main)
