"""Reads what a running run is asked to change (docs/formats/settings.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.spec.settings import SETTINGS, Settings


def newest_request(folder: Path) -> int:
    """Return the number of the newest request, 0 if there is none."""
    return int(_read(folder).get("id", 0))


def load_request(folder: Path) -> Settings:
    return Settings.model_validate(_read(folder))


def _read(folder: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((folder / SETTINGS).read_bytes())
    except FileNotFoundError:
        return {}
    return told
