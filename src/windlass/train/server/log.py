"""What a server did since the last checkpoint, as the frames that made it do so (docs/formats/server.md).

A frame is in the log before anything follows from it. The bytes are in the hands of the system then, so they
outlive the process, not the machine: after a new boot a log is not believed, and the checkpoint counts.
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
    """The log of one server. One that is not kept takes everything and holds nothing."""

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
        """What was written to it in this life."""

    def reopen(self, base: int) -> list[Frame]:
        """Return the frames that follow the checkpoint of step `base`, and go on after the last whole one.

        A log of anything else is no use, and begun anew.
        """
        frames, whole = self._read(base)
        if not whole:
            self.begin(base)
        elif self._kept:
            os.truncate(self._path, whole)
            self._file = self._path.open("ab", buffering=0)
        return frames

    def begin(self, base: int) -> None:
        """Forget everything: the checkpoint of step `base` holds it."""
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
        """Return the frames after the first, and how many bytes are whole; 0 if the log is none of ours."""
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
    """Yield whole frames; the last may be torn, for its writer died in the middle of it."""

    def fill(view: memoryview) -> None:
        if file.readinto(view) < view.nbytes:  # type: ignore[attr-defined]
            raise EOFError

    while True:
        try:
            yield read_frame(fill)
        except (EOFError, BadFrame):
            return


def boot_id() -> str:
    """Name this run of the machine; "" where the system does not say, and no log outlives its process."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
