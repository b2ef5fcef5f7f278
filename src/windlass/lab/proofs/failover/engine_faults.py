"""Faults of engines: a kill, a freeze, or a connection that breaks inside a frame."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from pathlib import Path
from typing import Literal

from windlass.supervisor.processes import EngineReplica

Kind = Literal["kill", "freeze", "tear"]
KINDS: tuple[Kind, ...] = ("kill", "freeze", "tear")
READ_BYTES = 1 << 16


class FaultySocket:
    """A proxy socket in front of an engine's own; it forwards everything until `tear` is called."""

    def __init__(self, path: Path, behind: Path) -> None:
        self.path, self._behind = path, behind
        self._tear = threading.Event()
        self._random = random.Random(str(path))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def tear(self) -> None:
        """Break the next connection on which the engine sends, inside a frame."""
        self._tear.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the socket was closed
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                if far.connect_ex(str(self._behind)):
                    near.close()
                    continue
                for work, ends in ((self._pass, (near, far)), (self._speak, (far, near))):
                    threading.Thread(target=work, args=ends, daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(READ_BYTES):
                far.sendall(data)
        _hang_up(near, far)

    def _speak(self, far: socket.socket, near: socket.socket) -> None:
        """Forward the engine's output. One read holds whole frames; when torn, a part of them is lost."""
        with contextlib.suppress(OSError):
            while data := far.recv(READ_BYTES):
                if len(data) > 1 and self._tear.is_set():
                    self._tear.clear()
                    near.sendall(data[: self._random.randrange(1, len(data))])
                    break
                near.sendall(data)
        _hang_up(near, far)


class FaultCatalog:
    """Proxy sockets of all engines, and the faults that can be injected."""

    def __init__(self) -> None:
        self._sockets: dict[str, FaultySocket] = {}

    def proxy_socket(self, name: str, socket_path: Path) -> Path:
        """Put a proxy in front of an engine's socket; the supervisor calls this."""
        proxy = self._sockets[name] = FaultySocket(socket_path.with_name(f"{name}.proxy"), socket_path)
        return proxy.path

    def strike(self, replica: EngineReplica, kind: Kind) -> None:
        with contextlib.suppress(ProcessLookupError):
            if kind == "kill":
                os.kill(replica.pid, signal.SIGKILL)
            elif kind == "freeze":
                os.kill(replica.pid, signal.SIGSTOP)
            else:
                self._sockets[replica.name].tear()

    def close(self) -> None:
        for proxy in self._sockets.values():
            proxy.close()


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
