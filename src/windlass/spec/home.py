"""The home directory: where a user's corpora, runs and models are."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.spec.errors import BadInput


def home_dir(given: str | None) -> Path:
    """Return the given directory, or $WINDLASS_HOME, or .windlass here. It need not exist yet."""
    home = Path(given or os.environ.get("WINDLASS_HOME") or ".windlass").expanduser().absolute()
    if home.exists() and not home.is_dir():
        raise BadInput(f"{home}: is a file, not a directory", hint="give another --home")
    return home
