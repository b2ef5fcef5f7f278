"""Reads the journal of a run, and records when: by our own clock, which no fault changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SeenRecord:
    """A record of the journal and the time at which it was seen."""

    at_s: float
    """By time.monotonic of this process; `time` in the record is by a clock that may have been set."""
    record: dict[str, Any]

    @property
    def event(self) -> str:
        return str(self.record.get("event"))


class JournalWatch:
    """Follows a journal that other processes append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self.seen: list[SeenRecord] = []
        self.generation = 0
        """The newest generation that was decided on."""
        self.epoch = 0
        """Epoch of the newest coordinator."""

    def poll(self, now_s: float) -> list[SeenRecord]:
        """Return the records added since the last poll; an incomplete last line is left for the next one."""
        fresh = [SeenRecord(now_s, json.loads(line)) for line in self._lines()]
        for seen in fresh:
            self.generation = max(self.generation, int(seen.record.get("generation") or 0))
            self.epoch = max(self.epoch, int(seen.record.get("epoch") or 0))
        self.seen += fresh
        return fresh

    def _lines(self) -> list[bytes]:
        try:
            if self._path.stat().st_size <= self._read_bytes:
                return []
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [line for line in whole.split(b"\n") if line.strip()]
