"""File locks that the operating system releases when the process ends, however it ends.

A crash leaves nothing to clean up. `locked` is an exclusive lock, for one writer at a time; `held` is a
shared lock, for many users of something that must not be removed meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.spec.errors import InUse


@contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Lock `file` exclusively; raise InUse at once if another process holds it."""
    with _holding(file, fcntl.LOCK_EX, what):
        yield


@contextmanager
def held(file: Path, what: str) -> Iterator[None]:
    """Lock `file` as one of many users; raise InUse if a process holds it exclusively."""
    with _holding(file, fcntl.LOCK_SH, what):
        yield


@contextmanager
def _holding(file: Path, how: int, what: str) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+") as handle:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip()
            who = f" by process {holder}" if holder else ""
            raise InUse(f"{what} is in use{who}", hint="wait for it, or stop it first") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
