"""A worker's connections: one to each server for values and pushes, one to the primary for tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from windlass.train.server.frames import Arrays, Frame, FrameConnection
from windlass.train.server.peers import connect
from windlass.train.server.shard_state import ROWS

Facts = dict[str, Any]


class ServerConnections:
    """All connections of one worker."""

    def __init__(self, folder: Path, stage: str, servers: int, name: str) -> None:
        self._connections = list[FrameConnection]()
        self.stamp: list[int] | None = None
        """Version of the values that the worker holds; None if they are mixed, predicted or incomplete."""
        try:
            for number in range(servers):
                self._connections.append(connect(folder, number, stage, role="data")[0])
            self.primary = connect(folder, 0, stage, role="tasks", name=name)[0]
        except ConnectionError:
            self.close()
            raise

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        if hasattr(self, "primary"):
            self.primary.close()

    def traffic(self) -> Facts:
        """Return the bytes sent and received since the last call."""
        moved = {"sent": sum(connection.bytes_sent for connection in self._connections)}
        moved["received"] = sum(connection.bytes_received for connection in self._connections)
        for connection in self._connections:
            connection.bytes_sent = connection.bytes_received = 0
        return moved

    def pull(self, rows: Arrays, ahead: int = 0) -> tuple[int, list[Frame]]:
        """Fetch all values, of tables in `rows` only those rows; return the oldest version and the frames."""
        wanted: dict[str, Tensor] = {name + ROWS: ids for name, ids in rows.items()}
        for connection in self._connections:
            connection.send(wanted, do="pull", ahead=ahead)
        frames = [connection.receive() for connection in self._connections]
        stamps = [frame.head["stamp"] for frame in frames]
        whole = not rows and not ahead and all(stamp == stamps[0] for stamp in stamps)
        self.stamp = stamps[0] if whole else None
        return min(int(version) for _, version in stamps), frames

    def push(self, task: str, shares: Sequence[Arrays]) -> None:
        """Send each server its share; when this returns, every server has logged it."""
        for connection, share in zip(self._connections, shares, strict=True):
            connection.send(share, do="push", task=task)
        for connection in self._connections:
            connection.receive()
