"""Disk usage of a tenant on this machine, and trimming of logs to their limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

BLOCK = 512
"""The unit of st_blocks on every file system (stat(2)): the space really used."""
COMMON = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))
"""Directories that all users may write to: files of a tenant's user there count as the tenant's."""
DROPPED = b"... earlier lines were dropped: the limit of this log is %d bytes\n"


def bytes_of(home: Path, uid: int | None, enough: int) -> int:
    """Return how many bytes a tenant has on disk; counting stops above `enough`."""
    total, linked = 0, set[tuple[int, int]]()
    for entry in _entries(home, uid):
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                if (found.st_dev, found.st_ino) in linked:
                    continue
                linked.add((found.st_dev, found.st_ino))
            total += found.st_blocks * BLOCK
        if total > enough:
            break
    return total


def _entries(home: Path, uid: int | None) -> Iterator[os.DirEntry[str]]:
    yield from _below(home)
    for common in COMMON if uid is not None else ():
        for entry in _listed(common):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        yield from _below(Path(entry.path))


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a directory; links are not followed."""
    waiting = [str(folder)]
    while waiting:
        for entry in _listed(Path(waiting.pop())):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:  # removed meanwhile
        return []


def trim(log: Path, limit: int) -> bool:
    """Drop the older half of a log that is too long; its writer appends, so it continues at the new end."""
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return False
    with open(descriptor, "r+b", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size <= limit:
            return False
        note = DROPPED % limit
        kept = os.pread(descriptor, limit // 2 - len(note), size - limit // 2 + len(note))
        os.ftruncate(descriptor, 0)
        file.write(note + kept.partition(b"\n")[2])
    return True
