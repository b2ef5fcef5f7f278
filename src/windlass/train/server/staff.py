"""The requested number of workers of a run."""

from __future__ import annotations

import json
from pathlib import Path

from windlass.spec.protocol.elastic import WORKERS


def wanted_workers(folder: Path) -> int | None:
    """Return the last requested number of workers; None if there was no request."""
    try:
        return int(json.loads((folder / WORKERS).read_bytes())["workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
