"""Write-ahead log of one server: the frames that changed it since the last checkpoint
(docs/formats/server.md).

A frame is in the log before it takes effect. The bytes are in the page cache then, so they survive the
process but not the machine: after a reboot the log is ignored and the checkpoint is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from windlass.train.server.frames import BUFFERS, Arrays, BadFrame, Frame, buffers_of, read_frame

BOOT = Path("/proc/sys/kernel/random/boot_id")
VERSION = 2


class UpdateLog:
    """The log of one server. With kept=False nothing is written."""

    def __init__(self, path: Path, *, number: int, servers: int, stage: str, kept: bool = True) -> None:
        self._path, self._kept = path, kept
        self._facts = {
            "log": VERSION,
            "boot": boot_id(),
            "number": number,
            "servers": servers,
            "stage": stage,
        }
        self._file: IO[bytes] | None = None
        self.bytes = 0
        """Bytes written by this process."""

    def reopen(self, base: int) -> list[Frame]:
        """Return the frames that follow the checkpoint of step `base`, and append after the last complete
        one.

        A log of anything else is discarded.
        """
        frames, whole = self._read(base)
        if not whole:
            self.begin(base)
        elif self._kept:
            os.truncate(self._path, whole)
            self._file = self._path.open("ab", buffering=0)
        return frames

    def begin(self, base: int) -> None:
        """Start an empty log: the checkpoint of step `base` holds everything before it."""
        self.close()
        self.bytes = 0
        if not self._kept:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        self._file = draft.open("wb", buffering=0)
        self.append({**self._facts, "base": base})
        draft.replace(self._path)

    def append(self, head: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        if self._file is None:
            return
        left = buffers_of(head, arrays or {})
        while left:
            some, left = left[:BUFFERS], left[BUFFERS:]
            wanted = sum(part.nbytes for part in some)
            self.bytes += wanted
            done = os.writev(self._file.fileno(), some)
            if done < wanted:  # the kernel takes 2 GiB at once
                self._file.write(b"".join(some)[done:])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, base: int) -> tuple[list[Frame], int]:
        """Return the frames after the first, and the length of all complete frames; 0 for a foreign log."""
        if not self._kept or not self._path.exists():
            return [], 0
        frames, whole = list[Frame](), 0
        with self._path.open("rb") as file:
            for frame in _frames(file):
                frames.append(frame)
                whole = file.tell()
        ours = bool(frames) and frames[0].head == {**self._facts, "base": base}
        return (frames[1:], whole) if ours else ([], 0)


def _frames(file: IO[bytes]) -> Iterator[Frame]:
    """Yield complete frames; the last one may be torn if its writer died."""

    def fill(view: memoryview) -> None:
        if file.readinto(view) < view.nbytes:  # type: ignore[attr-defined]
            raise EOFError

    while True:
        try:
            yield read_frame(fill)
        except (EOFError, BadFrame):
            return


def boot_id() -> str:
    """Return the kernel's boot id; "" if the system has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
