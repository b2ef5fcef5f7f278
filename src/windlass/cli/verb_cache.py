"""A cache of values computed from our own sources, valid until one of those sources changes.

To describe the verbs or the gateway's OpenAPI document, their modules have to be imported, which takes
most of a second; a shell that completes a word cannot wait that long. A value is stored with the time stamp
of every module that was loaded for it, so it is never out of date. If the cache cannot be read or written,
the value is computed again.
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
    """Return the cached value if it is still valid, else call `compute`, whose result must be JSON."""
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
    """Return the cache directory: below the user's cache, one for each installation."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "windlass" / str(ROOT).strip("/").replace("/", "-")


def _keep(file: Path, kept: dict[str, Any]) -> None:
    """Write the file atomically: two shells may write it at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(kept), "utf-8")
    temporary.replace(file)


def _sources() -> list[str]:
    """Return the files of the windlass modules that are loaded."""
    loaded = [
        getattr(module, "__file__", None)
        for name, module in sys.modules.items()
        if name.startswith("windlass")
    ]
    return sorted({file for file in loaded if file is not None})


def _stamp(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_mtime_ns, found.st_size]
