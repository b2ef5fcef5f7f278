"""A worker's lines: one to each server for values and pushes, one to the first for work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from windlass.train.server.frames import Arrays, Frame, FrameConnection
from windlass.train.server.peers import connect
from windlass.train.server.shard_state import ROWS

Facts = dict[str, Any]


class Lines:
    """What a worker says to servers and hears from them."""

    def __init__(self, folder: Path, stage: str, servers: int, name: str) -> None:
        self._lines = list[FrameConnection]()
        self.stamp: list[int] | None = None
        """Of the values that the worker has; None where they are none that ever stood, or not all."""
        try:
            for number in range(servers):
                self._lines.append(connect(folder, number, stage, role="learns")[0])
            self.chief = connect(folder, 0, stage, role="asks", name=name)[0]
        except ConnectionError:
            self.close()
            raise

    def close(self) -> None:
        for line in self._lines:
            line.close()
        if hasattr(self, "chief"):
            self.chief.close()

    def traffic(self) -> Facts:
        """Return the bytes that went since the last call."""
        told = {"sent": sum(line.bytes_sent for line in self._lines)}
        told["received"] = sum(line.bytes_received for line in self._lines)
        for line in self._lines:
            line.bytes_sent = line.bytes_received = 0
        return told

    def pull(self, rows: Arrays, ahead: int = 0) -> tuple[int, list[Frame]]:
        """Fetch everything, of tables in `rows` only those; return the oldest version, and what came."""
        asked: dict[str, Tensor] = {name + ROWS: ids for name, ids in rows.items()}
        for line in self._lines:
            line.send(asked, do="pull", ahead=ahead)
        frames = [line.receive() for line in self._lines]
        stamps = [frame.head["stamp"] for frame in frames]
        whole = not rows and not ahead and all(stamp == stamps[0] for stamp in stamps)
        self.stamp = stamps[0] if whole else None
        return min(int(version) for _, version in stamps), frames

    def push(self, task: str, shares: Sequence[Arrays]) -> None:
        """Send each server its share; when this returns, all of them have it in their logs."""
        for line, share in zip(self._lines, shares, strict=True):
            line.send(share, do="push", task=task)
        for line in self._lines:
            line.receive()
