"""Shards of a corpus on a store, cached on local disk within a limit.

    a read -> the shard is on disk: open it (a hit)
           -> it is not: evict, download, verify, rename into place, read it (a miss)

`disk_cache` is the directory that all processes share, `eviction` chooses what to evict, `prefetch` downloads
before the read. Shards that are expected soon are locked; they are evicted only when nothing else can be.
Shards of corpora that no process has open are evicted before all others.
"""

from __future__ import annotations

import fcntl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from windlass.corpus.remote.disk_cache import DiskCache
from windlass.corpus.remote.eviction import Policy
from windlass.corpus.remote.published import Origin, fetch, is_shard
from windlass.spec.errors import StoreFailed
from windlass.store.lock import held
from windlass.store.manifest import FileRecord
from windlass.store.store_dir import translate_os_errors

MAX_TOUCHES = 4096
KEY_LETTERS = 16


@dataclass(frozen=True)
class CacheFacts:
    """Cache statistics of one process. A read counts once for each shard that it touches."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    prefetch_hits: int = 0
    """Hits that would have been misses, had the shard not been prefetched; counted within `hits`."""


class ShardCache:
    """The shards of one corpus, as one process sees them; threads may share it. Does nothing before use."""

    def __init__(self, origin: Origin, digest: str, files: Mapping[str, FileRecord]) -> None:
        self.origin, self._files, self._corpus = origin, files, digest[:KEY_LETTERS]
        self._disk = DiskCache(Path(origin.folder), origin.policy, origin.bytes)
        self._touches: list[str] = []
        self._last = ""
        self._ahead: set[str] = set()
        self._others: list[str] = []
        self._counts: Counter[str] = Counter()
        self._mutex, self._beginning = threading.Lock(), threading.Lock()
        self._using: ExitStack | None = None

    @property
    def max_ahead(self) -> int:
        """How many shards may be prefetched: as configured, but at most half of the limit."""
        largest = max((record.bytes for name, record in self._files.items() if is_shard(name)), default=1)
        return min(self.origin.prefetch, self.origin.bytes // 2 // largest)

    def facts(self) -> CacheFacts:
        with self._mutex:
            return CacheFacts(**self._counts)

    def close(self) -> None:
        """Release the corpus, so that its shards are evicted first; the end of the process does the same."""
        with self._beginning:
            if self._using is not None:
                self._using.close()
            self._using = None

    def opened(self, name: str) -> IO[bytes]:
        """Return a shard open for reading, which stays readable whatever is evicted meanwhile."""
        self._begin()
        file = self._whole(name)
        if file is not None:
            self._note_hit(name)
            return file
        file = self._fetched(name, patient=True)
        assert file is not None, "a patient download returns a file or raises"
        self._note(misses=1)
        with self._mutex:
            self._last = self._key(name)
            self._ahead.discard(name)
        return file

    def bring(self, name: str) -> IO[bytes] | None:
        """Prefetch a shard and lock it until the file is closed; None if it cannot be downloaded now."""
        self._begin()
        file = self._whole(name) or self._fetched(name, patient=False)
        if file is not None:
            with suppress(BlockingIOError):  # it is open all the same, and its downloader holds the lock
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return file

    def _fetched(self, name: str, *, patient: bool) -> IO[bytes] | None:
        """Download a shard, or wait for the process that is downloading it; not `patient`: return None.

        No deadlock: a downloader never waits.
        """
        while True:
            with self._policy() as policy:
                file = self._whole(name)
                blocker = None if file else self._blocker(policy, name, forced=patient)
                part = None if file or blocker else self._disk.new_part(self._key(name))
            if part is not None:
                return self._filled(name, part, ahead=not patient)
            if file is not None or not patient:
                return file
            if blocker is not None:
                self._disk.wait_for(blocker)

    def _blocker(self, policy: Policy, name: str, *, forced: bool) -> str | None:
        """Make room for a shard and add it to the index; or return the download that must finish first."""
        key, size = self._key(name), self._files[name].bytes
        if self._disk.is_coming(key):
            return key
        policy.forget(key)
        policy.miss(key, size)
        self._drop_abandoned(policy, size)
        gone, enough = self._disk.make_room(policy, size, forced=forced)
        self._note(evictions=gone)
        if not enough:
            return policy.names()[0]
        policy.admit(key, size)
        return None

    def _filled(self, name: str, part: IO[bytes], *, ahead: bool) -> IO[bytes]:
        """Download into a part file that this process has locked, and rename it into place."""
        record = self._files[name]
        try:
            with translate_os_errors(part.name):
                fetch(self.origin.url, name, record, part)
                self._disk.finish(self._key(name), part)
        except BaseException:
            # Should this fail too, the index counts a shard that is not here until the next sweep.
            with part, suppress(StoreFailed), self._policy() as policy:
                Path(part.name).unlink(missing_ok=True)
                policy.forget(self._key(name))
            raise
        if ahead:
            with self._mutex:
                self._ahead.add(name)
        self._note(fetched=1, fetched_bytes=record.bytes)
        return part

    def _drop_abandoned(self, policy: Policy, size: int) -> None:
        """Evict shards of corpora that no process has open, as far as room is needed."""
        while self._others and policy.bytes + size > policy.limit_bytes:
            key = self._others.pop()
            if key in policy and not self._disk.is_used(key.split("/")[0]):
                policy.forget(key)
                self._disk.remove([key])
                self._note(evictions=1)

    def _begin(self) -> None:
        """Open the disk cache on first use: register this process, and clear the debris of dead ones."""
        if self._using is not None:
            return
        with self._beginning, ExitStack() as using:
            if self._using is not None:
                return
            self.origin.check(self._files)
            with self._policy() as policy:
                using.enter_context(held(self._disk.use_file(self._corpus), f"cached corpus {self._corpus}"))
                self._disk.sweep(policy)
                self._others = [key for key in policy.names() if not key.startswith(f"{self._corpus}/")]
                self._drop_abandoned(policy, 0)
                self._disk.make_room(policy, 0, forced=True)
            self._using = using.pop_all()

    @contextmanager
    def _policy(self) -> Iterator[Policy]:
        """Lock the shared policy and apply the reads of this process to it."""
        with self._disk.policy() as policy:
            with self._mutex:
                touches, self._touches = self._touches, []
            for key in touches:
                policy.touch(key)
            yield policy

    def _note_hit(self, name: str) -> None:
        """Count a hit. The policy already knows prefetched shards, and consecutive reads are one use."""
        key = self._key(name)
        with self._mutex:
            ahead = name in self._ahead
            self._ahead.discard(name)
            if not ahead and self._last != key:
                self._touches.append(key)
            self._last = key
            full = len(self._touches) >= MAX_TOUCHES
        self._note(hits=1, prefetch_hits=int(ahead))
        if full:
            with self._policy():
                pass

    def _note(self, **counts: int) -> None:
        with self._mutex:
            self._counts.update(counts)

    def _whole(self, name: str) -> IO[bytes] | None:
        return self._disk.whole(self._key(name), self._files[name].bytes)

    def _key(self, name: str) -> str:
        """Name a file of this corpus in the disk cache: "CORPUS/train-tokens-00000"."""
        return f"{self._corpus}/{name.removesuffix('.bin').replace('/', '-')}"
