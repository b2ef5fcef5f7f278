"""Reads the requested settings of an active run (docs/formats/settings.md)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from windlass.spec.errors import WindlassError
from windlass.spec.read import parse
from windlass.spec.run import JOURNAL
from windlass.spec.settings import SETTINGS, Settings, folded
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir


def newest_request(folder: Path) -> int:
    """Return the number of the newest request, 0 if there is none or it cannot be read.

    Called at every step. A damaged file must not end a run.
    """
    try:
        return int(json.loads((folder / SETTINGS).read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def load_request(folder: Path) -> Settings:
    """Read the newest request, or raise what is wrong with it."""
    file = folder / SETTINGS
    return parse(Settings, json.loads(file.read_bytes()), str(file))


class StopRequested:
    """Polls for a stop request, for runs that accept no other settings; reads the file every `every_s`."""

    def __init__(self, folder: Path, every_s: float = 0.2) -> None:
        self._folder, self._every_s = folder, every_s
        self._read_at, self._stop = 0.0, False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._stop and now - self._read_at >= self._every_s:
            self._read_at = now
            try:
                self._stop = newest_request(self._folder) > 0 and load_request(self._folder).stop
            except (WindlassError, OSError, ValueError):
                self._stop = False  # a damaged request must not end a run
        return self._stop


def answered_before(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest request that any trainer of this run has applied, and the values then in force."""
    return folded(Journal(StoreDir(folder), JOURNAL).read())
