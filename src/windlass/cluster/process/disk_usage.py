"""What a tenant has on this machine's disk: how much it is, and logs that grow no further than they may."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

BLOCK = 512
"""The unit of st_blocks, whatever the file system's own is (stat(2)): what is really on the disk."""
COMMON = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))
"""Where everybody may write: what lies there and belongs to a tenant's user counts as the tenant's."""
DROPPED = b"... earlier lines are gone: this log may hold %d bytes\n"


def bytes_of(home: Path, uid: int | None, enough: int) -> int:
    """Return how many bytes a tenant has on disk; no more is counted once it is more than `enough`."""
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
    """Yield all that is in a directory, at any depth; links are not followed."""
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
    except OSError:  # gone meanwhile
        return []


def trim(log: Path, most: int) -> bool:
    """Drop the older half of a log that is too long; whoever writes it goes on at its end."""
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return False
    with open(descriptor, "r+b", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size <= most:
            return False
        note = DROPPED % most
        kept = os.pread(descriptor, most // 2 - len(note), size - most // 2 + len(note))
        os.ftruncate(descriptor, 0)
        file.write(note + kept.partition(b"\n")[2])
    return True
