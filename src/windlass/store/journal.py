"""Append-only lines of JSON that survive a torn write.

One record a line. On local disk the lines are appended to one file, by several processes in turn;
elsewhere, where nothing can be appended, each flush becomes a segment. A reader drops a last line without
its newline: its writer died in the middle of it. The format is docs/formats/journal.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any

from windlass.spec.errors import Damaged
from windlass.store.store_dir import StoreDir, translate_os_errors

BLOCK_BYTES = 1 << 16
TURN_S = 0.5
"""Longest wait for another writer: a writer that hangs with the lock must not block the others."""


class Journal:
    """A named journal in a StoreDir."""

    def __init__(self, place: StoreDir, name: str = "journal.jsonl") -> None:
        self.place = place
        self.name = name

    def append(self, *records: dict[str, Any], sync: bool = False) -> None:
        """Add records after all others; with `sync`, they are on disk when this returns."""
        data = b"".join(json.dumps(r, ensure_ascii=False, allow_nan=True).encode() + b"\n" for r in records)
        if self.place.local is None:
            self.place.write(f"{self.name}/{len(self._segments()):08d}", data)
            return
        path = self.place.local / self.name
        with translate_os_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                with _turn(file) as alone:
                    self._drop_torn_line()
                    _write_whole(file, data, undo=alone)
                if sync:
                    os.fsync(file.fileno())

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records in order; an absent journal has none."""
        for number, line in enumerate(self._bytes().split(b"\n")[:-1], start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                raise Damaged(f"{self.place.url}/{self.name}: line {number} is not JSON") from None

    def last(self, *events: str) -> dict[str, Any] | None:
        """Return the newest record of some kinds, looking from the end; None if there is none."""
        for line in self._lines_from_the_end():
            if line.strip() and (record := json.loads(line)).get("event") in events:
                found: dict[str, Any] = record
                return found
        return None

    def _lines_from_the_end(self) -> Iterator[bytes]:
        """Yield whole lines, newest first, reading no more than needed."""
        if self.place.local is None or not (self.place.local / self.name).exists():
            yield from reversed(self._bytes().split(b"\n")[:-1])
            return
        with (self.place.local / self.name).open("rb") as file:
            at, rest = file.seek(0, os.SEEK_END), b""
            torn = True  # what follows the last newline is no line
            while at > 0:
                size = min(at, BLOCK_BYTES)
                at = file.seek(at - size)
                rest, *lines = (file.read(size) + rest).split(b"\n")
                if torn and lines:
                    lines, torn = lines[:-1], False
                yield from reversed(lines)
            if not torn:
                yield rest

    def _bytes(self) -> bytes:
        if self.place.local is None:
            return b"".join(self.place.read(name) for name in self._segments())
        path = self.place.local / self.name
        return path.read_bytes() if path.exists() else b""

    def _segments(self) -> list[str]:
        return self.place.names(self.name)

    def _drop_torn_line(self) -> None:
        """Cut what follows the last newline, so that the next record starts a line of its own."""
        assert self.place.local is not None
        path = self.place.local / self.name
        if not path.exists() or path.stat().st_size == 0:
            return
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) == b"\n":
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


@contextmanager
def _turn(file: FileIO) -> Iterator[bool]:
    """Lock the file for one writer at a time; yields whether the lock was obtained."""
    alone, until = False, time.monotonic() + TURN_S
    while not alone and time.monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:  # a file system that knows no locks
            break
    try:
        yield alone
    finally:
        if alone:
            fcntl.flock(file, fcntl.LOCK_UN)


def _write_whole(file: FileIO, data: bytes, *, undo: bool) -> None:
    """Write all of it, or with `undo` nothing: a full disk may take only the beginning of a line."""
    before = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        if undo:
            os.ftruncate(file.fileno(), before)
        raise
