"""Makes a snapshot of a home while training and serving continue.

    list files -> lock -> chunks of finished directories, databases, other files -> all there? -> snapshot

Input: a home, and databases on servers if there are some. Output: a snapshot in the repository, or nothing:
after a crash the next attempt finds the chunks that were sent, and sends only the others.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass import __version__
from windlass.backup import databases
from windlass.backup.contents import FOLDER, Contents, files_of, is_tokens, look, newest_write_s
from windlass.backup.databases import DatabaseKind, check_names
from windlass.backup.locks import BackupLock, claimed
from windlass.backup.repository import BackupRepository
from windlass.backup.snapshot import BackupSnapshot, FileEntry
from windlass.backup.uploader import RateLimit, Sender, UploadCache, UploadedBytes
from windlass.spec.errors import Damaged, NotFound, StoreFailed, WindlassError
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.database import open_database
from windlass.store.db_backup import copy_sqlite, dump
from windlass.store.manifest import MANIFEST, load_manifest
from windlass.store.store_dir import StoreDir

LOOKS = 3
ROUNDS = 4
"""Attempts to send missing chunks before the backup fails."""


@dataclass(frozen=True)
class BackupOptions:
    """How a backup is made."""

    databases: Mapping[str, str] = field(default_factory=dict)
    """URLs of databases on servers, by name (`databases`)."""
    corpora: bool = False
    """Whether the tokens of corpora are included; their metadata always is."""
    parallel: int = 4
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Made:
    """A snapshot, and what making it cost."""

    snapshot: BackupSnapshot
    sent: UploadedBytes
    seconds: float

    def facts(self) -> dict[str, Any]:
        return {**self.snapshot.facts(), **self.sent.facts(), "seconds": round(self.seconds, 3)}


def make(
    home: Path,
    repository: BackupRepository,
    options: BackupOptions | None = None,
    report: Report = silent,
    clock: Callable[[], float] = time.time,
) -> Made:
    """Make one snapshot."""
    options = options or BackupOptions()
    check_names(options.databases)
    newest_s = newest_write_s(home)
    if not newest_s:  # a schedule must not back up an empty home after a loss
        raise NotFound(f"{home}: nothing to back up", hint="give the --home of your models and runs")
    began, began_s = time.monotonic(), clock()
    repository.see(newest_write_s=newest_s, at_s=began_s)
    with claimed(repository.place, "make") as claim:
        work = _Work(home, repository, options, report, began_s)
        with work:
            snapshot = work.run(claim, clock)
    repository.see(newest_write_s=newest_write_s(home), at_s=clock())
    return Made(snapshot, work.sender.sent, time.monotonic() - began)


class _Work:
    """One run through the stages."""

    def __init__(
        self, home: Path, repository: BackupRepository, options: BackupOptions, report: Report, began_s: float
    ) -> None:
        self.home, self.repository, self.options, self.report, self.began_s = (
            home,
            repository,
            options,
            report,
            began_s,
        )
        self.files: dict[str, FileEntry] = {}
        self.left_out: list[str] = []
        self.memory = UploadCache(home / FOLDER, repository.id, now_s=began_s)
        self.sender = Sender(
            repository,
            self.memory,
            parallel=options.parallel,
            pace=RateLimit(options.bytes_per_s),
            passed=self._passed,
        )
        self._done, self._total = 0, 0

    def __enter__(self) -> None:
        self.sender.__enter__()

    def __exit__(self, *args: object) -> None:
        self.sender.__exit__(*args)

    def run(self, claim: BackupLock, clock: Callable[[], float]) -> BackupSnapshot:
        made_s = clock()
        for _ in range(ROUNDS):
            self._send_all()
            self.sender.finish()
            if not claim.is_good:  # this process slept, or the store was away: chunks may have been pruned
                claim.renew()
            snapshot = self._snapshot(made_s)
            if not self.sender.missing(snapshot.chunks) and claim.is_good:
                written = self.repository.write(snapshot)
                self.memory.save()
                return written
            self.files.clear()
            self.left_out.clear()
        raise StoreFailed(f"{self.repository.place.url}: chunks that were sent are missing")

    def _send_all(self) -> None:
        found = self._look()
        self._done, self._total = 0, self._size(found)
        for folder in found.whole:
            self._send_whole(folder)
        with tempfile.TemporaryDirectory(prefix="databases-", dir=self._own_folder()) as scratch:
            self._send_databases(found.databases, Path(scratch))
        for path in found.loose:
            self._send_loose(path)
        for path, data in found.aliases.items():
            self.files[path] = self.sender.send_bytes(self._aliases(path, data), path)

    def _look(self) -> Contents:
        """List again if an alias names an unlisted version: it was registered in between."""
        for _ in range(LOOKS):
            found = look(self.home)
            named = {
                f"{path.rpartition('/')[0]}/{number}"
                for path, data in found.aliases.items()
                for number in json.loads(data).values()
            }
            if named <= set(found.whole):
                break
        return found

    def _aliases(self, path: str, data: bytes) -> bytes:
        """Keep only aliases of versions in the snapshot: one may have been deleted meanwhile."""
        folder = path.rpartition("/")[0]
        kept = {
            alias: number
            for alias, number in json.loads(data).items()
            if f"{folder}/{number}/{MANIFEST}" in self.files
        }
        return json.dumps(kept).encode()

    def _send_whole(self, folder: str) -> None:
        """Back up a finished directory, whole or not at all."""
        try:
            manifest = load_manifest(StoreDir(self.home / folder))
            if manifest is None:
                return  # it was deleted meanwhile
            entries = {}
            for path in files_of(self.home, folder):
                if is_tokens(path) and not self.options.corpora:
                    continue
                entry = self.sender.send(self.home / path, path)
                record = manifest.files.get(path[len(folder) + 1 :])
                if record is not None and (record.bytes, record.sha256) != (entry.bytes, entry.sha256):
                    raise Damaged(f"{path}: the bytes differ from those written")
                entries[path] = entry
            absent = {f"{folder}/{name}" for name in manifest.files} - set(entries)
            if any(not is_tokens(path) for path in absent):
                raise NotFound(f"{folder}: some of its files are missing")
            self.files |= entries
        except NotFound as error:
            if (self.home / folder / MANIFEST).exists():
                self.left_out.append(error.message)
        except Damaged as error:
            self.left_out.append(error.message)

    def _send_databases(self, paths: list[str], scratch: Path) -> None:
        for number, path in enumerate(paths):
            copy = scratch / str(number)
            copy_sqlite(self.home / path, copy)
            copy.chmod((self.home / path).stat().st_mode & 0o777)
            self.files[path] = self.sender.send(copy, path, role="sqlite")
        for kind in databases.KINDS:
            if kind.name in self.options.databases:
                self._send_dump(kind, self.options.databases[kind.name], scratch / kind.file)

    def _send_dump(self, kind: DatabaseKind, url: str, target: Path) -> None:
        database = open_database(url)
        try:
            dump(database, target)
        finally:
            database.close()
        self.files[kind.file] = self.sender.send(target, kind.file, role="dump")

    def _send_loose(self, path: str) -> None:
        try:
            self.files[path] = self.sender.send(self.home / path, path)
        except NotFound:
            return  # it was deleted meanwhile, as leases and requests are
        except WindlassError as error:
            self.left_out.append(error.message)

    def _snapshot(self, made_s: float) -> BackupSnapshot:
        files = tuple(self.files[path] for path in sorted(self.files))
        return BackupSnapshot(
            home=str(self.home),
            host=socket.gethostname(),
            code=__version__,
            began_s=self.began_s,
            made_s=made_s,
            newest_write_s=max((file.modified_s for file in files), default=0.0),
            files=files,
            left_out=tuple(self.left_out),
        )

    def _size(self, found: Contents) -> int:
        paths = [path for folder in found.whole for path in files_of(self.home, folder)]
        sizes = 0
        for path in (*paths, *found.databases, *found.loose):
            if not is_tokens(path) or self.options.corpora:
                try:
                    sizes += (self.home / path).stat().st_size
                except FileNotFoundError:
                    continue
        return sizes

    def _own_folder(self) -> Path:
        folder = self.home / FOLDER
        folder.mkdir(exist_ok=True)
        return folder

    def _passed(self, size: int) -> None:
        self._done += size
        note = {"sent": f"{self.sender.sent.sent_bytes / 1e6:.1f} MB"}
        self.report(Progress("backup", self._done, max(self._total, self._done), "B", note))
