"""Many idle connections: their memory, and whether requests are still answered."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from windlass.lab.bench.engine_process import resident_bytes
from windlass.lab.bench.gateway_contenders import GatewayContender
from windlass.spec.errors import BadInput

SPARE_FILES = 256
AT_ONCE = 100
PATIENCE_S = 30.0
ASK = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
GOOD = b"HTTP/1.1 200"


@dataclass(frozen=True)
class IdleResult:
    """Number of connections still open at the end, and the server's memory meanwhile."""

    connections: int
    memory_bytes: int


def hold_idle(server: GatewayContender, wanted: int) -> IdleResult:
    """Open connections, send one request on each, and count those still open at the end."""
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    with ExitStack() as stack:
        idle: list[socket.socket] = []
        while len(idle) < wanted:
            fresh = [
                stack.enter_context(socket.create_connection((parts.hostname, parts.port or 80), PATIENCE_S))
                for _ in range(min(AT_ONCE, wanted - len(idle)))
            ]
            idle += [one for one in fresh if _answered(one)]
            if len(fresh) < AT_ONCE or not idle:
                break
        memory = resident_bytes(server.pid, "VmRSS")
        return IdleResult(sum(map(_is_open, idle)), memory)


def _answered(connection: socket.socket) -> bool:
    try:
        connection.sendall(ASK)
        return connection.recv(4096).startswith(GOOD)
    except OSError:
        return False


def _is_open(connection: socket.socket) -> bool:
    """Check without blocking: a closed connection reads as ended, an idle one has no data."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def allow_files(connections: int) -> None:
    """Raise this process's limit of open files, which its servers inherit."""
    wanted = connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard < wanted:
        raise BadInput(
            f"--idle {connections}: a process may open at most {hard} files here",
            hint="raise the limit with ulimit -Hn, or give a smaller --idle",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
