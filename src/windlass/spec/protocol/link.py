"""A connection between processes of a run: lines of JSON over TCP, which also detects a dead peer.

The connection stays open for the whole run, so each side notices when the other is gone: at once (the
connection closes) when a process died, within seconds (keep-alive fails) when a machine or a cable did.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

from windlass.spec.errors import AskedWrongly

SEND_S = 5.0
READ_BYTES = 1 << 16
LONGEST_BYTES = 1 << 20
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 11_000}

Message = dict[str, Any]


class Link:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._line = b""
        self._waiting: list[Message] = []
        self.closed = False
        self.peer = str(connection.getpeername()[0])
        self.own = str(connection.getsockname()[0])
        """The local address, at which the peer's machine can reach this one."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message. Only a reply shows that it has arrived."""
        if self.closed:
            return
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            self._socket.setblocking(False)
        except OSError:
            self.close()

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, without waiting; sets `closed` if the peer is gone."""
        while not self.closed:
            try:
                part = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self._take(part)
        taken, self._waiting = self._waiting, []
        return taken

    def answer(self, seconds: float) -> Message | None:
        """Wait for the next message; None on timeout or if the peer is gone."""
        until = time.monotonic() + seconds
        while not self._waiting:
            self._waiting = self.receive()
            left = until - time.monotonic()
            if self._waiting or self.closed or left <= 0:
                break
            wait_for([self.fileno()], left)
        return self._waiting.pop(0) if self._waiting else None

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def _take(self, part: bytes) -> None:
        """Split received bytes into messages. Invalid input closes the connection: the peer is foreign."""
        *lines, self._line = (self._line + part).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        self._waiting += [m for m in messages if isinstance(m, dict)]
        nonsense = len(self._line) > LONGEST_BYTES or any(not isinstance(m, dict) for m in messages)
        if not part or nonsense:
            self.close()


def wait_for(files: Sequence[int], seconds: float) -> None:
    """Wait until one of the open descriptors has something to read, but not longer than `seconds`."""
    with selectors.DefaultSelector() as selector:
        for file in (file for file in files if file >= 0):
            selector.register(file, selectors.EVENT_READ)
        selector.select(seconds)


def parse_address(text: str) -> tuple[str, int]:
    """Read "host:port"."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise AskedWrongly(f"--rendezvous {text}: write it as HOST:PORT", hint="example: 10.0.0.1:29400")
    return host, int(port)
