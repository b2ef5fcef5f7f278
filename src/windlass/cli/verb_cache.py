"""Remembers what was computed from our own sources, for as long as those sources stay as they are.

To learn what verbs take, or what the gateway's document says, their modules have to be imported, which takes
most of a second; a shell that completes a word cannot wait so long. What was learnt is kept with the time
stamp of every module that was loaded for it, so that it is never out of date; a cache that cannot be read or
written costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import windlass

ROOT = Path(windlass.__file__).parent


def remembered(name: str, compute: Callable[[], Any]) -> Any:
    """Return what `compute` returns, which must be JSON, from the cache where that still holds."""
    file = folder() / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text("utf-8"))
        if kept["stamps"] and all(_stamp(path) == stamp for path, stamp in kept["stamps"].items()):
            return kept["value"]
    value = compute()
    with contextlib.suppress(OSError):
        _keep(file, {"stamps": {path: _stamp(path) for path in _sources()}, "value": value})
    return value


def folder() -> Path:
    """Return where things are remembered: the user's cache, one directory for each installation."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "windlass" / str(ROOT).strip("/").replace("/", "-")


def _keep(file: Path, kept: dict[str, Any]) -> None:
    """Write a whole file or none: two shells may do this at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(kept), "utf-8")
    beside.replace(file)


def _sources() -> list[str]:
    """Return the files of our modules that are loaded."""
    loaded = [
        getattr(module, "__file__", None)
        for name, module in sys.modules.items()
        if name.startswith("windlass")
    ]
    return sorted({file for file in loaded if file is not None})


def _stamp(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_mtime_ns, found.st_size]
