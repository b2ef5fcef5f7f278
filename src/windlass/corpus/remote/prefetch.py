"""Downloads shards before they are read, while training computes.

The shards that the next steps read are known (`batches`), so nothing is guessed. Expected shards that are
here are locked, so that no process evicts them before they are read. Nothing here blocks or fails a caller:
a shard that could not be downloaded is downloaded by the read that needs it, and that read raises the error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import IO

from windlass.corpus.remote.cache import ShardCache
from windlass.spec.errors import WindlassError

THREADS = 4
"""Enough to hide the time that a store takes to answer; the bytes themselves share one connection."""


class Ahead:
    """Shards that will be read soon. Each call of `expect` replaces the one before."""

    def __init__(self, cache: ShardCache) -> None:
        self._cache, self._max_shards = cache, cache.max_ahead
        self._changed = threading.Condition()
        self._expected: tuple[str, ...] = ()
        self._wanted: deque[str] = deque()
        self._held: dict[str, IO[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def expect(self, names: Sequence[str]) -> None:
        """Announce the shards to be read next, in this order; return at once."""
        with self._changed:
            self._expected = tuple(dict.fromkeys(names))[: self._max_shards]
            for name in [name for name in self._held if name not in self._expected]:
                self._held.pop(name).close()
            self._wanted = deque(name for name in self._expected if name not in self._held)
            if self._wanted and not self._threads:
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        # A process ends without waiting for these threads; the cache clears what they leave.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted)
                name = self._wanted.popleft()
            try:
                file = self._cache.bring(name)
            except (WindlassError, OSError):
                continue  # the read that needs it raises the same error
            if file is not None:
                self._keep(name, file)

    def _keep(self, name: str, file: IO[bytes]) -> None:
        """Keep a shard locked while it is expected; closing the file releases it."""
        with self._changed:
            if name in self._expected and name not in self._held:
                self._held[name] = file
            else:
                file.close()
