"""Reads and writes a tenant's files with that tenant's rights, from a process that has more.

The tenant controls its home: a link in the place of a journal would make the control plane read another
tenant's file. So the thread that does the work takes the tenant's user id for file access (setfsuid(2) works
per thread and drops root's rights over files), and the kernel refuses what it would refuse the tenant.
Without a user id for each tenant, links are checked instead, which is open to a race.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.spec.errors import NotFound, ProcessFailed

MAX_NOTE_BYTES = 4096
MAX_RECORD_BYTES = 256 << 20
RECORDS = (".json", ".jsonl")


@contextmanager
def as_user(uid: int | None) -> Iterator[None]:
    """Let this thread access only the files that a user may; None changes nothing."""
    if uid is None or sys.platform != "linux":
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsgid(uid)
    library.setfsuid(uid)
    try:
        if library.setfsuid(-1) != uid:
            raise ProcessFailed("could not switch to the tenant's user id for file access")
        yield
    finally:
        library.setfsuid(os.geteuid())
        library.setfsgid(os.getegid())


def inside(path: Path, home: Path) -> Path:
    """Return a path with all links followed; raise NotFound if it is outside the home."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(home)):
        raise NotFound(f"there is no {path.name} here")
    return real


def sound(folder: Path, home: Path) -> None:
    """Refuse a directory of a tenant with entries, up to two levels down, that are unsafe to read.

    A link out of its home; a pipe, which would block a reader for ever; a record that is too large.
    """
    inside(folder, home)
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        inside(path, home)
        found = path.stat() if path.exists() else None
        if found is None or stat.S_ISDIR(found.st_mode):
            continue
        record = path.suffix in RECORDS and found.st_size > MAX_RECORD_BYTES
        if record or not stat.S_ISREG(found.st_mode):
            raise NotFound(f"{path.name} cannot be shown: not a regular file, or too large")


def small_json(path: Path) -> object:
    """Read a small JSON file that a tenant wrote; None if it is missing or invalid."""
    try:
        with path.open("rb") as file:
            return json.loads(file.read(MAX_NOTE_BYTES)) if path.is_file() else None
    except (OSError, ValueError):
        return None
