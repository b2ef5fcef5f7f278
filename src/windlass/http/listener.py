"""Binds an address, and configures uvicorn with limits on every connection."""

from __future__ import annotations

import errno
import functools
import math
import socket
from typing import Any

from windlass.http.transport import BoundedProtocol, HttpConnections
from windlass.spec.errors import BadInput, InUse
from windlass.spec.serve import Serve

DRAIN_S = 5.0
"""How long answers in progress may take after the server begins to stop."""
LAST_WORDS_S = 2
"""After the drain, streams get an error event; this is the time for delivering it."""
SEND_BUFFER_BYTES = 262144
"""Send buffer of a connection; by default it grows to megabytes for a client that does not read."""


def settings() -> dict[str, Any]:
    """Return uvicorn's settings: no logs, and no trust in headers that name the client."""
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


def bounded_settings(serve: Serve, connections: HttpConnections) -> dict[str, Any]:
    """Return uvicorn's settings for the gateway: limits on every connection, and TLS if configured."""
    tls = {"ssl_certfile": serve.tls_certificate, "ssl_keyfile": serve.tls_key}
    bounds = {
        "http": functools.partial(BoundedProtocol, connections),
        "timeout_keep_alive": math.ceil(serve.transport.idle_s),
    }
    return settings() | bounds | (tls if serve.tls_certificate is not None else {})


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a port, or raise a WindlassError. All gateways of one port must pass `shared`."""
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
    """Return the URL that a user on this machine can open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if secure else 'http'}://{shown}:{listener.getsockname()[1]}"
