"""The way from a file to chunks in the store: what is there already is not sent, the rest by several threads.

Pieces are cut at fixed places, so a file that only grows changes in its last piece alone. What this machine
remembers of files (size, time, number on the disk) spares reading them again while these stay the same.
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

from windlass.backup.repository import Vault
from windlass.backup.snapshot import FileEntry, Role
from windlass.spec.errors import NotFound
from windlass.store.store_dir import StoreDir, translate_os_errors
from windlass.store.thread_priority import lower_priority

CHUNK_BYTES = 8 << 20
SETTLED_S = 2.0
"""A file that was written so shortly ago may change again without its time changing."""


class RateLimit:
    """Lets so many bytes pass in a second, for all threads together."""

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
    """What went where."""

    read_bytes: int = 0
    new_chunks: int = 0
    sent_bytes: int = 0
    """As they were packed."""
    kept_bytes: int = 0
    """Of files, that were there already."""
    known_files: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def facts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


class Sender:
    """Sends files to one vault. Use it as a context: its end waits for what is under way."""

    def __init__(
        self,
        vault: Vault,
        memory: UploadCache,
        *,
        parallel: int,
        pace: RateLimit,
        passed: Callable[[int], None],
    ) -> None:
        self._vault, self._memory, self._pace, self._passed = vault, memory, pace, passed
        self._known = set(vault.chunks())
        self._pool = ThreadPoolExecutor(parallel, "backup", initializer=lower_priority)
        self._room = threading.BoundedSemaphore(2 * parallel)
        self._under_way: deque[Future[None]] = deque()
        self.sent = UploadedBytes()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def finish(self) -> None:
        """Wait until everything is in the store; raise what went wrong."""
        while self._under_way:
            self._under_way.popleft().result()

    def missing(self, names: set[str]) -> set[str]:
        """Return those that the store does not have, by asking it again."""
        self._known = set(self._vault.chunks())
        return names - self._known

    def send(self, file: Path, path: str, *, role: Role = "file") -> FileEntry:
        """Send what a file holds at this moment."""
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
        chunks = (self._offer(data),) if data else ()
        return FileEntry(path, len(data), hashlib.sha256(data).hexdigest(), 0o644, time.time(), chunks)

    def _read(self, source: IO[bytes], size: int) -> tuple[str, tuple[str, ...], int]:
        """Read no further than the file reached when it was opened: it may be growing."""
        digest, chunks, left = hashlib.sha256(), [], size
        while left and (data := source.read(min(CHUNK_BYTES, left))):
            digest.update(data)
            chunks.append(self._offer(data))
            left -= len(data)
            self._passed(len(data))
        self.sent.read_bytes += size - left
        return digest.hexdigest(), tuple(chunks), size - left

    def _offer(self, data: bytes) -> str:
        """Have a chunk sent unless it is there, or on its way."""
        name = self._vault.name(data)
        if name in self._known:
            self.sent.kept_bytes += len(data)
            return name
        self._known.add(name)
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()  # what went wrong is told before more is read
        self._room.acquire()
        self._under_way.append(self._pool.submit(self._put, name, data))
        return name

    def _put(self, name: str, data: bytes) -> None:
        try:
            size = self._vault.put(name, data)
            self._pace.pay(size)
            with self.sent.turn:
                self.sent.new_chunks += 1
                self.sent.sent_bytes += size
        finally:
            self._room.release()


class UploadCache:
    """What this machine knows of files that it sent before. Nothing is lost with it but time."""

    def __init__(self, folder: Path, vault_id: str, *, now_s: float) -> None:
        self._place, self._name, self._now_s = StoreDir(folder), f"known-{vault_id}.json", now_s
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
