"""The supervisor's end of the line to its gateways: tells routing tables, hears reports.

One thread accepts, one for each gateway reads; what they hear is gathered until the supervisor looks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from windlass.spec.protocol.routing import (
    AnswerOutcome,
    Demand,
    GatewayHello,
    Outcomes,
    Routing,
    Suspect,
    ToSupervisor,
    VersionDemand,
    to_supervisor,
)
from windlass.spec.protocol.wire import frame, take_frames

READ_BYTES = 1 << 16


@dataclass
class GatewayReports:
    """What gateways told since the last look."""

    outcomes: list[AnswerOutcome] = field(default_factory=list)
    suspects: dict[str, str] = field(default_factory=dict)
    refused: int = 0


class GatewayChannel:
    """All gateways of a service."""

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._heard = GatewayReports()
        self._demands: dict[socket.socket, Demand] = {}
        self._lines: set[socket.socket] = set()
        self._said = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(64)

    def start(self) -> None:
        """Begin to listen; whoever connects is told the latest routing table at once."""
        threading.Thread(target=self._accept, daemon=True).start()

    def tell(self, routing: Routing) -> None:
        """Send a routing table to all gateways, and keep it for those that come later."""
        with self._lock:
            self._said = frame(routing)
            for line in self._lines:
                with contextlib.suppress(OSError):  # its reader notices
                    line.sendall(self._said)

    def take(self) -> GatewayReports:
        with self._lock:
            heard, self._heard = self._heard, GatewayReports()
        return heard

    def demand(self) -> dict[str, VersionDemand]:
        """Add up what the gateways last said about each version."""
        sums: dict[str, Counter[str]] = {}
        with self._lock:
            demands = list(self._demands.values())
        for demand in demands:
            for version, each in demand.versions.items():
                sums.setdefault(version, Counter()).update(msgspec.to_builtins(each))
        return {version: VersionDemand(**parts) for version, parts in sums.items()}

    def reached(self, versions: Collection[str]) -> int:
        """Return how many gateways could ask all of these versions."""
        with self._lock:
            return sum(set(versions) <= set(demand.alive) for demand in self._demands.values())

    def agreed(self, revision: int) -> bool:
        """Tell whether every gateway that asks anybody does so by this routing table, or a later one."""
        with self._lock:
            return all(demand.revision >= revision for demand in self._demands.values())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return  # the listener was closed
            with self._lock:
                self._lines.add(line)
                with contextlib.suppress(OSError):
                    line.sendall(self._said)
            threading.Thread(target=self._read, args=(line,), daemon=True).start()

    def _read(self, line: socket.socket) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while data := line.recv(READ_BYTES):
                buffer += data
                for body in take_frames(buffer):
                    self._hear(line, to_supervisor.decode(body))
        with self._lock:
            self._lines.discard(line)
            self._demands.pop(line, None)
        line.close()

    def _hear(self, line: socket.socket, message: ToSupervisor) -> None:
        is_news = isinstance(message, Suspect)
        with self._lock:
            match message:
                case Outcomes():
                    self._heard.outcomes += message.outcomes
                case Suspect():
                    self._heard.suspects[message.replica] = message.why
                case Demand():
                    is_news = line not in self._demands or self._demands[line].alive != message.alive
                    self._demands[line] = message
                    self._heard.refused += message.refused
                case GatewayHello():
                    pass
        if is_news:
            self._wake()
