"""Restores a home from a snapshot.

    snapshot -> HOME.restoring, file by file, each checked -> relocated -> renamed to HOME

The home appears at once, by the rename. An interrupted restore is resumed with the missing files; until the
rename nothing could be mistaken for a home.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from windlass.backup.databases import check_names
from windlass.backup.locks import claimed
from windlass.backup.relocate import relocate
from windlass.backup.repository import BackupRepository
from windlass.backup.snapshot import BackupSnapshot, FileEntry
from windlass.spec.errors import Damaged, InUse, StoreFailed
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.lock import locked
from windlass.store.store_dir import StoreDir, sync_folder, translate_os_errors

MARK = ".snapshot"
"""File in the staging directory: the id of the snapshot that is being restored."""


@dataclass(frozen=True)
class MissingData:
    """How much was written after the snapshot, as far as the store knows."""

    age_s: float
    """Age of the snapshot: nothing that was written earlier is lost."""
    known_s: float
    """Time between the snapshot and the newest write seen after it."""
    bound_s: float | None
    """The interval of the schedule; None without a schedule."""


@dataclass(frozen=True)
class Restored:
    """A restored home."""

    snapshot: BackupSnapshot
    home: Path
    seconds: float
    fetched_bytes: int
    lost: MissingData
    needs: tuple[str, ...]
    """What is left to do by hand."""

    def facts(self) -> dict[str, Any]:
        return {
            **self.snapshot.facts(),
            "restored_to": str(self.home),
            "seconds": round(self.seconds, 3),
            "fetched_bytes": self.fetched_bytes,
            "lost": asdict(self.lost),
            "needs": list(self.needs),
        }


def restore(
    repository: BackupRepository,
    home: Path,
    wanted: str | None = None,
    *,
    databases: Mapping[str, str] | None = None,
    parallel: int = 4,
    report: Report = silent,
) -> Restored:
    """Restore the newest snapshot, or `wanted`, to a home that is empty or does not exist."""
    began = time.monotonic()
    check_names(databases or {})
    home = home.absolute()
    with _staging(home) as staging, _reading(repository):
        snapshot = repository.find(wanted)
        if _is_occupied(home):
            raise InUse(f"{home}: is not empty", hint="give another --to, or move it away first")
        _begin(staging, snapshot)
        fetched = fetch(repository, snapshot, staging, parallel=parallel, report=report)
        needs = relocate(staging, snapshot, home, databases)
        _appear(staging, home)
    return Restored(
        snapshot, home, time.monotonic() - began, fetched, loss(repository, snapshot), tuple(needs)
    )


def fetch(
    repository: BackupRepository, snapshot: BackupSnapshot, folder: Path, *, parallel: int, report: Report
) -> int:
    """Fetch every file of a snapshot to a folder, each checked; return the bytes fetched."""
    tally, turn = {"done": 0, "moved": 0}, threading.Lock()

    def fetch_entry(entry: FileEntry) -> None:
        path = folder / _safe(entry)
        moved = 0 if _is_there(path, entry) else _fetch_file(repository, entry, path)
        with turn:
            tally["done"] += entry.bytes
            tally["moved"] += moved
            report(Progress("restore", tally["done"], snapshot.bytes, "B"))

    with ThreadPoolExecutor(parallel, "restore") as pool:
        work = [pool.submit(fetch_entry, entry) for entry in snapshot.files]
        try:
            for future in work:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return tally["moved"]


def loss(repository: BackupRepository, snapshot: BackupSnapshot, now_s: float | None = None) -> MissingData:
    """Return how much newer than the snapshot the lost home was."""
    seen = repository.seen()
    now_s = time.time() if now_s is None else now_s
    newest = float(seen.get("newest_write_s") or 0.0)
    every = seen.get("every_s")
    return MissingData(
        age_s=round(max(0.0, now_s - snapshot.made_s), 3),
        known_s=round(max(0.0, newest - snapshot.made_s), 3),
        bound_s=float(every) if every is not None else None,
    )


def staging_of(home: Path) -> Path:
    return home.with_name(f"{home.name}.restoring")


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Allow one restore at a time per home; yield the staging directory."""
    with translate_os_errors(str(home)):
        home.parent.mkdir(parents=True, exist_ok=True)
    lock = home.with_name(f".{home.name}.restoring.lock")
    with locked(lock, f"the restore to {home}"):
        yield staging_of(home)
    lock.unlink(missing_ok=True)


@contextmanager
def _reading(repository: BackupRepository) -> Iterator[None]:
    """Lock against pruning, if the credentials allow writing a lock."""
    try:
        claim = claimed(repository.place, "read")
        claim.__enter__()
    except StoreFailed:
        claim = nullcontext()  # type: ignore[assignment]
        claim.__enter__()
    try:
        yield
    finally:
        claim.__exit__(None, None, None)


def _begin(staging: Path, snapshot: BackupSnapshot) -> None:
    """Keep the staging directory if it is of the same snapshot, else start over.

    Partial files that a killed attempt left are removed.
    """
    mark = staging / MARK
    if not mark.exists() or mark.read_text() != snapshot.id:
        shutil.rmtree(staging, ignore_errors=True)
        StoreDir(staging).write(MARK, snapshot.id.encode())
        return
    wanted = {entry.path for entry in snapshot.files}
    for part in staging.rglob("*.part-*"):
        if part.relative_to(staging).as_posix() not in wanted:
            part.unlink()


def _appear(staging: Path, home: Path) -> None:
    with translate_os_errors(str(home)):
        (staging / MARK).unlink(missing_ok=True)
        if home.exists():
            home.rmdir()  # fails unless it is empty
        staging.rename(home)
        sync_folder(home.parent)


def _is_occupied(home: Path) -> bool:
    return home.exists() and (not home.is_dir() or any(home.iterdir()))


def _fetch_file(repository: BackupRepository, entry: FileEntry, path: Path) -> int:
    digest, length = hashlib.sha256(), 0
    with StoreDir(path.parent).writing(path.name) as target:
        for chunk in entry.chunks:
            data = repository.get(chunk)
            digest.update(data)
            length += len(data)
            target.write(data)
        if (length, digest.hexdigest()) != (entry.bytes, entry.sha256):
            raise Damaged(f"{entry.path}: what its chunks hold is not what was backed up")
    _set_attributes(path, entry)
    return length


def _is_there(path: Path, entry: FileEntry) -> bool:
    """Whether an earlier attempt fetched this file."""
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
            return False
    _set_attributes(path, entry)
    return True


def _set_attributes(path: Path, entry: FileEntry) -> None:
    path.chmod(entry.mode)
    os.utime(path, (entry.modified_s, entry.modified_s))


def _safe(entry: FileEntry) -> PurePosixPath:
    """Reject a path that leads out of the home: a backup is untrusted input."""
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\x00" in entry.path:
        raise Damaged(f"{entry.path!r}: not a path below a home")
    return path
