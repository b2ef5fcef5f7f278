"""How many workers a run was last asked to have."""

from __future__ import annotations

import json
from pathlib import Path

from windlass.spec.protocol.elastic import WORKERS


def wanted_workers(folder: Path) -> int | None:
    """Return how many workers the run was last asked to have; None where nobody said."""
    try:
        return int(json.loads((folder / WORKERS).read_bytes())["workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
