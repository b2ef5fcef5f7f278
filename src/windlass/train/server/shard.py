"""One server's shard: pushes wait for their commit, and everything is logged first.

Input: pushes (`stage`) and commits. Output: values (`pull`) and checkpoint shards (`save`). `restore`
recovers after a crash: it loads the newest checkpoint and replays the log.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from windlass.spec.protocol.server_registry import log_file
from windlass.spec.sync import Sync
from windlass.train.checkpoint.async_save import State
from windlass.train.server.frames import Frame
from windlass.train.server.log import UpdateLog
from windlass.train.server.shard_state import ServerGroup, ShardState, Share
from windlass.train.server.updates import ServerUpdate

LOG_BYTES, LOG_UPDATES = 1 << 30, 32
"""A log longer than LOG_BYTES and LOG_UPDATES times the size of the shard makes a checkpoint due."""


class ServerShard:
    """The state of one server, with staged pushes, versions and the log."""

    def __init__(self, part: ShardState, sync: Sync, folder: Path, number: int) -> None:
        self.part = part
        self.lock = threading.RLock()
        self._log = UpdateLog(
            log_file(folder, number), number=number, servers=sync.servers, stage=part.stage, kept=sync.log
        )
        self._staged: dict[str, Share] = {}
        self._last_reply: dict[str, Any] = {}
        """Reply to the last commit, for a repeated request."""
        self.version = 0
        """Number of the last update, counted from the step of the checkpoint."""
        self.base = State(0, 0, 0.0)
        """The checkpoint that the log follows."""

    @property
    def stamp(self) -> list[int]:
        """Identifies the current values uniquely."""
        return [self.base.step, self.version]

    def restore(self) -> tuple[list[ServerUpdate], list[str]]:
        """Load the newest checkpoint and replay the log; return the updates since, and the checkpoints
        skipped.

        A log of another number of servers, or of another boot of the machine, is not used.
        """
        state, skipped = self.part.load()
        self.base = state or self.base
        self.version = self.base.step
        frames = self._log.reopen(self.base.step)
        return [update for frame in frames for update in self._redo(frame)], skipped

    def _redo(self, frame: Frame) -> list[ServerUpdate]:
        if "task" in frame.head:
            self._staged[frame.head["task"]] = frame.arrays
            return []
        if "kept" in frame.head:
            self.part.restore_unsaved(frame.head["kept"], frame.arrays)
            return []
        update = ServerUpdate.from_facts(frame.head["commit"])
        self._apply(update)
        return [update]

    def pull(self, rows: Share, *, ahead: int = 0) -> tuple[list[int], dict[str, Tensor]]:
        """Return the stamp and copies of all values, of tables in `rows` only those rows.

        With `ahead` they are extrapolated by that many updates from the momentum.
        """
        with self.lock:
            return self.stamp, self.part.values(rows, ahead)

    def stage(self, task: str, share: Share) -> None:
        """Keep a push until its commit."""
        self.part.check(share)
        with self.lock:
            self._log.append({"task": task}, share)
            self._staged[task] = share

    def staged(self) -> list[str]:
        with self.lock:
            return list(self._staged)

    def drop(self, tasks: Sequence[str]) -> None:
        """Drop pushes that will not be committed; they stay in the log, which does no harm."""
        with self.lock:
            for task in tasks:
                self._staged.pop(task, None)

    def square(self, tasks: Sequence[str]) -> float:
        """Add up some pushes, and return the square of the sum's norm."""
        with self.lock:
            return self.part.square([self._staged[task] for task in tasks])

    def commit(self, update: ServerUpdate) -> dict[str, Any]:
        """Apply an update once; repeating the request is harmless."""
        with self.lock:
            if update.number <= self.version:
                return self._last_reply
            assert update.number == self.version + 1, f"update {update.number} after {self.version}"
            self._log.append({"commit": asdict(update)})
            return self._apply(update)

    def note(self, head: Mapping[str, Any]) -> None:
        """Log something that a checkpoint does not hold, for `ShardState.restore_unsaved`."""
        with self.lock:
            self._log.append({"kept": head})

    def missing(self, update: ServerUpdate) -> list[str]:
        """Return what an update needs and this server lacks; empty if it was already applied."""
        with self.lock:
            if update.number <= self.version:
                return []
            if update.number > self.version + 1:
                return [f"update {self.version + 1}"]
            return self.lost(update.tasks) + self.part.missing_for(update)

    def lost(self, tasks: Sequence[str]) -> list[str]:
        """Return the tasks whose pushes this server lacks."""
        with self.lock:
            return [f"gradient {task}" for task in tasks if task not in self._staged]

    def save(self, state: State, group: ServerGroup) -> Path:
        """Write this server's shard of a checkpoint, together with all servers, and start a new log."""
        with self.lock:
            path = self.part.save(state, group)
            self.base, self.version = state, state.step
            self._log.begin(state.step)
            for head, share in self.part.unsaved():
                self._log.append({"kept": head}, share)
            return path

    @property
    def due(self) -> bool:
        """True if [checkpoint] seconds have passed since the last one, or the log is too long."""
        return self.part.due or self._log.bytes > max(LOG_BYTES, LOG_UPDATES * self.part.bytes)

    def close(self, within_s: float) -> None:
        self.part.close(within_s)
        self._log.close()

    def _apply(self, update: ServerUpdate) -> dict[str, Any]:
        self._last_reply = self.part.apply([self._staged[task] for task in update.tasks], update)
        for task in update.tasks:
            del self._staged[task]
        self.version = update.number
        return self._last_reply
