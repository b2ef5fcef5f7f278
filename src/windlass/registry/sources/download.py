"""Copies a URL of any store to this disk, resumes a copy that was interrupted, and reports progress.

An unfinished file is called NAME.MARK.part, where MARK stands for the URL, the length and the store's mark of
the content (an ETag, or the time of the last change): bytes of another content are never resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from windlass.spec.errors import Damaged
from windlass.spec.protocol.progress import Progress, Report
from windlass.store.store_dir import StoredFile, opened, translate_os_errors

CHUNK = 4 << 20
WATCH_EVERY_S = 0.2


def fetch_file(stored: StoredFile, target: Path, report: Report, sha256: str | None = None) -> None:
    """Copy one file, from where an earlier copy of the same content ended; check length and digest."""
    if target.exists() and (sha256 is None or digest_of(target) == sha256):
        return
    mark = hashlib.sha256(f"{stored.url} {stored.bytes} {stored.mark}".encode()).hexdigest()[:16]
    part = target.with_name(f"{target.name}.{mark}.part")
    with translate_os_errors(str(part)):
        part.parent.mkdir(parents=True, exist_ok=True)
    _continue(stored, part, report)
    got = part.stat().st_size
    if stored.bytes and got != stored.bytes:
        if got > stored.bytes:
            part.unlink()
        raise Damaged(
            f"{stored.url}: {got} bytes arrived of {stored.bytes}",
            hint="run the same command again: it resumes where this one stopped",
        )
    if sha256 is not None and digest_of(part) != sha256:
        part.unlink()
        raise Damaged(
            f"{stored.url}: its sha256 is not {sha256}", hint="the file changed, or the digest is wrong"
        )
    part.replace(target)


def _continue(stored: StoredFile, part: Path, report: Report) -> None:
    """Append what is missing of an unfinished file."""
    total = stored.bytes or None
    name = PurePosixPath(stored.url.partition("?")[0]).name
    with part.open("ab") as out, opened(stored.url) as source:
        if out.tell() and (out.tell() > stored.bytes or not source.seekable()):
            out.truncate(0)
        if out.tell():
            source.seek(out.tell())
        report(Progress("download", out.tell(), total, "B", {"file": name}))
        while chunk := source.read(CHUNK):
            out.write(chunk)
            report(Progress("download", out.tell(), total, "B", {"file": name}))
        out.flush()
        os.fsync(out.fileno())


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with translate_os_errors(str(path)), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def watched(folder: Path, total: int | None, report: Report) -> Iterator[None]:
    """Report how much a library has written below a folder, while the block downloads into it.

    Each library has a progress bar of its own, and none has the same; the bytes on the disk are common.
    """
    done = threading.Event()

    def look() -> int:
        there = size_of(folder)
        return there if total is None else min(there, total)

    def watch() -> None:
        seen = -1
        while not done.wait(WATCH_EVERY_S):
            there = look()
            if there not in (seen, total):  # all of it is reported once, at the end
                report(Progress("download", there, total, "B"))
            seen = there

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    report(Progress("download", look(), total, "B"))


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, which may change meanwhile."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.stat(os.path.join(where, name)).st_size
    return found
