"""What one server does with its part: pushes wait for their commit, and everything is in the log first.

Input: pushes (`stage`) and commits. Output: values (`pull`) and parts of checkpoints (`save`). `restore`
brings back what a death interrupted: the newest checkpoint and whatever was done since.
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
from windlass.train.server.shard_state import ServerCrew, ShardState, Share
from windlass.train.server.updates import ServerUpdate

LOG_BYTES, LOG_UPDATES = 1 << 30, 32
"""A log longer than so many bytes, and so many times what the server holds, is due to be replaced by a
checkpoint."""


class ServerShard:
    """One server's part of a run, with the updates that change it."""

    def __init__(self, part: ShardState, sync: Sync, folder: Path, number: int) -> None:
        self.part = part
        self.lock = threading.RLock()
        self._log = UpdateLog(
            log_file(folder, number), number=number, servers=sync.servers, stage=part.stage, kept=sync.log
        )
        self._staged: dict[str, Share] = {}
        self._told: dict[str, Any] = {}
        """Of the last update, for whoever asks again."""
        self.version = 0
        """Updates that were made, counted from the step of the checkpoint."""
        self.base = State(0, 0, 0.0)
        """The checkpoint that the log follows."""

    @property
    def stamp(self) -> list[int]:
        """Which values are here: those of no other moment have the same."""
        return [self.base.step, self.version]

    def restore(self) -> tuple[list[ServerUpdate], list[str]]:
        """Go on from the newest checkpoint and the log; return the updates since, and what was passed over.

        A log of another number of servers, or of another boot of the machine, is not used.
        """
        state, passed_over = self.part.load()
        self.base = state or self.base
        self.version = self.base.step
        frames = self._log.reopen(self.base.step)
        return [update for frame in frames for update in self._redo(frame)], passed_over

    def _redo(self, frame: Frame) -> list[ServerUpdate]:
        if "task" in frame.head:
            self._staged[frame.head["task"]] = frame.arrays
            return []
        if "kept" in frame.head:
            self.part.take_up(frame.head["kept"], frame.arrays)
            return []
        update = ServerUpdate.heard(frame.head["commit"])
        self._apply(update)
        return [update]

    def pull(self, rows: Share, *, ahead: int = 0) -> tuple[list[int], dict[str, Tensor]]:
        """Return copies of everything, of tables in `rows` only those rows, and which values they are.

        They are as they stand, or as they will be after `ahead` further updates by what momentum knows.
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
        """Forget pushes that will not be committed; a log still has them, which does no harm."""
        with self.lock:
            for task in tasks:
                self._staged.pop(task, None)

    def square(self, tasks: Sequence[str]) -> float:
        """Add up some pushes, and return the square of the sum's norm."""
        with self.lock:
            return self.part.square([self._staged[task] for task in tasks])

    def commit(self, update: ServerUpdate) -> dict[str, Any]:
        """Make an update, once; whoever is not sure whether it was made says it again."""
        with self.lock:
            if update.number <= self.version:
                return self._told
            assert update.number == self.version + 1, f"update {update.number} after {self.version}"
            self._log.append({"commit": asdict(update)})
            return self._apply(update)

    def note(self, head: Mapping[str, Any]) -> None:
        """Write something down that a checkpoint does not hold, for whoever restores the part."""
        with self.lock:
            self._log.append({"kept": head})

    def missing(self, update: ServerUpdate) -> list[str]:
        """Name what an update needs and is not here; nothing where it was made already."""
        with self.lock:
            if update.number <= self.version:
                return []
            if update.number > self.version + 1:
                return [f"update {self.version + 1}"]
            return self.lost(update.tasks) + self.part.lacks(update)

    def lost(self, tasks: Sequence[str]) -> list[str]:
        """Name those of some tasks whose pushes are not here."""
        with self.lock:
            return [f"gradient {task}" for task in tasks if task not in self._staged]

    def save(self, state: State, crew: ServerCrew) -> Path:
        """Write this server's part of a checkpoint, together with all others, and begin a new log."""
        with self.lock:
            path = self.part.save(state, crew)
            self.base, self.version = state, state.step
            self._log.begin(state.step)
            for head, share in self.part.keepsakes():
                self._log.append({"kept": head}, share)
            return path

    @property
    def due(self) -> bool:
        """Whether [checkpoint] seconds have passed since the last one, or the log has become too long."""
        return self.part.due or self._log.bytes > max(LOG_BYTES, LOG_UPDATES * self.part.bytes)

    def close(self, within_s: float) -> None:
        self.part.close(within_s)
        self._log.close()

    def _apply(self, update: ServerUpdate) -> dict[str, Any]:
        self._told = self.part.apply([self._staged[task] for task in update.tasks], update)
        for task in update.tasks:
            del self._staged[task]
        self.version = update.number
        return self._told
