"""Reads what a running run is asked to change (docs/formats/settings.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.spec.read import parse
from windlass.spec.run import JOURNAL
from windlass.spec.settings import SETTINGS, Settings, folded
from windlass.store.journal import Journal
from windlass.store.place import Place


def newest_request(folder: Path) -> int:
    """Return the number of the newest request, 0 if there is none or it cannot be read.

    Every step asks. A damaged file must not end a run.
    """
    try:
        return int(json.loads((folder / SETTINGS).read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def load_request(folder: Path) -> Settings:
    """Read the newest request, or say what is wrong with it."""
    file = folder / SETTINGS
    return parse(Settings, json.loads(file.read_bytes()), str(file))


def told_before(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest request that any trainer of this run has taken, and the values then in force."""
    return folded(Journal(Place(folder), JOURNAL).read())
