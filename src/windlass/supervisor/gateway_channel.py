"""The supervisor's socket to its gateways: routing tables out, reports in.

One thread accepts, and one for each gateway reads; reports are collected until the supervisor takes them.
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
    """What gateways have reported since the last `take`."""

    outcomes: list[AnswerOutcome] = field(default_factory=list)
    suspects: dict[str, str] = field(default_factory=dict)
    refused: int = 0


class GatewayChannel:
    """All gateways of a service."""

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._reports = GatewayReports()
        self._demands: dict[socket.socket, Demand] = {}
        self._streams: set[socket.socket] = set()
        self._latest = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(64)

    def start(self) -> None:
        """Start to accept; a gateway that connects gets the latest routing table at once."""
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, routing: Routing) -> None:
        """Send a routing table to all gateways, and keep it for those that come later."""
        with self._lock:
            self._latest = frame(routing)
            for stream in self._streams:
                with contextlib.suppress(OSError):  # its reading thread notices
                    stream.sendall(self._latest)

    def take(self) -> GatewayReports:
        with self._lock:
            reports, self._reports = self._reports, GatewayReports()
        return reports

    def demand(self) -> dict[str, VersionDemand]:
        """Return the demand for each version, summed over the latest reports of all gateways."""
        sums: dict[str, Counter[str]] = {}
        with self._lock:
            demands = list(self._demands.values())
        for demand in demands:
            for version, counts in demand.versions.items():
                sums.setdefault(version, Counter()).update(msgspec.to_builtins(counts))
        return {version: VersionDemand(**parts) for version, parts in sums.items()}

    def reached(self, versions: Collection[str]) -> int:
        """Return how many gateways can reach all of these versions."""
        with self._lock:
            return sum(set(versions) <= set(demand.alive) for demand in self._demands.values())

    def agreed(self, revision: int) -> bool:
        """Whether every gateway uses this revision of the routing table, or a later one."""
        with self._lock:
            return all(demand.revision >= revision for demand in self._demands.values())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # the listener was closed
            with self._lock:
                self._streams.add(stream)
                with contextlib.suppress(OSError):
                    stream.sendall(self._latest)
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: socket.socket) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while data := stream.recv(READ_BYTES):
                buffer += data
                for body in take_frames(buffer):
                    self._receive(stream, to_supervisor.decode(body))
        with self._lock:
            self._streams.discard(stream)
            self._demands.pop(stream, None)
        stream.close()

    def _receive(self, stream: socket.socket, message: ToSupervisor) -> None:
        is_news = isinstance(message, Suspect)
        with self._lock:
            match message:
                case Outcomes():
                    self._reports.outcomes += message.outcomes
                case Suspect():
                    self._reports.suspects[message.replica] = message.why
                case Demand():
                    is_news = stream not in self._demands or self._demands[stream].alive != message.alive
                    self._demands[stream] = message
                    self._reports.refused += message.refused
                case GatewayHello():
                    pass
        if is_news:
            self._wake()
