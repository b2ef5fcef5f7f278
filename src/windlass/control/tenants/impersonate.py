"""Reads and writes a tenant's files with that tenant's rights, in a process that has more.

What lies in a tenant's home was put there by the tenant: a link in the place of a journal would let whoever
reads it for the tenant read another's. So the thread that does the work takes the tenant's user id for all
that concerns files (setfsuid(2) is of one thread, and gives up the rights of root over files), and the
system refuses what it would refuse the tenant. Without a user id for each tenant, links are looked at
instead, which a tenant that is quick can evade.
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
    """Let this thread touch only the files that a user may; None: as it is."""
    if uid is None or sys.platform != "linux":
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsgid(uid)
    library.setfsuid(uid)
    try:
        if library.setfsuid(-1) != uid:
            raise ProcessFailed("the system did not take a tenant's user for its files")
        yield
    finally:
        library.setfsuid(os.geteuid())
        library.setfsgid(os.getegid())


def inside(path: Path, home: Path) -> Path:
    """Return a path that lies in a home, all links followed; what does not is not there."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(home)):
        raise NotFound(f"there is no {path.name} here")
    return real


def sound(folder: Path, home: Path) -> None:
    """Refuse a directory of a tenant that holds, within two steps, what it should not be read for the tenant.

    A link out of its home; a pipe, at which a reader would wait for ever; a record too large to be read.
    """
    inside(folder, home)
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        inside(path, home)
        found = path.stat() if path.exists() else None
        if found is None or stat.S_ISDIR(found.st_mode):
            continue
        record = path.suffix in RECORDS and found.st_size > MAX_RECORD_BYTES
        if record or not stat.S_ISREG(found.st_mode):
            raise NotFound(f"{path.name} is no record that can be shown")


def small_json(path: Path) -> object:
    """Read a small file that a tenant wrote; None if it is not what it should be."""
    try:
        with path.open("rb") as file:
            return json.loads(file.read(MAX_NOTE_BYTES)) if path.is_file() else None
    except (OSError, ValueError):
        return None
