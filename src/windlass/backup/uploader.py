"""Uploads files as chunks: chunks that are stored already are not sent, the others by several threads.

Chunks have a fixed size, so a file that only grows changes in its last chunk alone. A cache of each file's
size, modification time and inode avoids reading files that did not change.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from windlass.backup.repository import BackupRepository
from windlass.backup.snapshot import FileEntry, Role
from windlass.spec.errors import NotFound
from windlass.store.store_dir import StoreDir, translate_os_errors
from windlass.store.thread_priority import lower_priority

CHUNK_BYTES = 8 << 20
SETTLED_S = 2.0
"""A file written more recently may change again without a new modification time."""


class RateLimit:
    """Limits the bytes per second of all threads together."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate, self._turn, self._free_at = bytes_per_s, threading.Lock(), 0.0

    def pay(self, size: int) -> None:
        if self._rate is None:
            return
        with self._turn:
            now = time.monotonic()
            wait = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + size / self._rate
        time.sleep(wait)


@dataclass
class UploadedBytes:
    """Counts of a backup's uploads."""

    read_bytes: int = 0
    new_chunks: int = 0
    sent_bytes: int = 0
    """After compression."""
    kept_bytes: int = 0
    """Bytes of files whose chunks were stored already."""
    known_files: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def facts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


class Sender:
    """Sends files to a repository. A context manager: its exit waits for uploads in progress."""

    def __init__(
        self,
        repository: BackupRepository,
        memory: UploadCache,
        *,
        parallel: int,
        pace: RateLimit,
        passed: Callable[[int], None],
    ) -> None:
        self._repository, self._memory, self._pace, self._passed = repository, memory, pace, passed
        self._known = set(repository.chunks())
        self._pool = ThreadPoolExecutor(parallel, "backup", initializer=lower_priority)
        self._room = threading.BoundedSemaphore(2 * parallel)
        self._under_way: deque[Future[None]] = deque()
        self.sent = UploadedBytes()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def finish(self) -> None:
        """Wait until all chunks are stored; raise the first error."""
        while self._under_way:
            self._under_way.popleft().result()

    def missing(self, names: set[str]) -> set[str]:
        """Return the chunks that the store does not have; lists the store again."""
        self._known = set(self._repository.chunks())
        return names - self._known

    def send(self, file: Path, path: str, *, role: Role = "file") -> FileEntry:
        """Send the current content of a file."""
        with translate_os_errors(str(file)), file.open("rb") as source:
            facts = os.fstat(source.fileno())
            remembered = self._memory.recall(path, facts) if role == "file" else None
            if remembered is not None and self._known.issuperset(remembered[1]):
                sha256, chunks, size = remembered[0], remembered[1], facts.st_size
                self.sent.known_files += 1
                self.sent.kept_bytes += size
                self._passed(size)
            else:
                sha256, chunks, size = self._read(source, facts.st_size)
                self._memory.note(path, facts, sha256, chunks)
        return FileEntry(path, size, sha256, facts.st_mode & 0o777, facts.st_mtime, chunks, role)

    def send_bytes(self, data: bytes, path: str) -> FileEntry:
        chunks = (self._submit(data),) if data else ()
        return FileEntry(path, len(data), hashlib.sha256(data).hexdigest(), 0o644, time.time(), chunks)

    def _read(self, source: IO[bytes], size: int) -> tuple[str, tuple[str, ...], int]:
        """Read up to the size that the file had when it was opened: it may be growing."""
        digest, chunks, left = hashlib.sha256(), [], size
        while left and (data := source.read(min(CHUNK_BYTES, left))):
            digest.update(data)
            chunks.append(self._submit(data))
            left -= len(data)
            self._passed(len(data))
        self.sent.read_bytes += size - left
        return digest.hexdigest(), tuple(chunks), size - left

    def _submit(self, data: bytes) -> str:
        """Send a chunk unless it is stored or being sent; return its name."""
        name = self._repository.name(data)
        if name in self._known:
            self.sent.kept_bytes += len(data)
            return name
        self._known.add(name)
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()  # raises an earlier failure before more is read
        self._room.acquire()
        self._under_way.append(self._pool.submit(self._put, name, data))
        return name

    def _put(self, name: str, data: bytes) -> None:
        try:
            size = self._repository.put(name, data)
            self._pace.pay(size)
            with self.sent.turn:
                self.sent.new_chunks += 1
                self.sent.sent_bytes += size
        finally:
            self._room.release()


class UploadCache:
    """Cache of the files that this machine sent before. Losing it costs only time."""

    def __init__(self, folder: Path, repository_id: str, *, now_s: float) -> None:
        self._place, self._name, self._now_s = StoreDir(folder), f"known-{repository_id}.json", now_s
        self._before = self._load()
        self._after: dict[str, list[object]] = {}

    def recall(self, path: str, facts: os.stat_result) -> tuple[str, tuple[str, ...]] | None:
        known = self._before.get(path)
        if known is None or known[:3] != [facts.st_size, facts.st_mtime_ns, facts.st_ino]:
            return None
        self._after[path] = known
        return str(known[3]), tuple(str(chunk) for chunk in known[4])  # type: ignore[attr-defined]

    def note(self, path: str, facts: os.stat_result, sha256: str, chunks: tuple[str, ...]) -> None:
        if facts.st_mtime < self._now_s - SETTLED_S:
            self._after[path] = [facts.st_size, facts.st_mtime_ns, facts.st_ino, sha256, list(chunks)]

    def save(self) -> None:
        self._place.write(self._name, json.dumps(self._after).encode())

    def _load(self) -> dict[str, list[object]]:
        try:
            return dict(json.loads(self._place.read(self._name)))
        except (NotFound, ValueError):
            return {}
