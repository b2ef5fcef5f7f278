"""Caches records that every request looks up, until a commit changes the database's revision.

The service stays up while its database is unreachable: cached records stay valid for some minutes, and the
database is retried every second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from windlass.spec.errors import StoreFailed
from windlass.store.database import Database

K = TypeVar("K")
V = TypeVar("V")

MAX_RECORDS = 20_000
TRUST_S = 300.0
RETRY_S = 1.0


class RecordCache(Generic[K, V]):
    """The values of some keys, read once for each revision of the database. Thread-safe."""

    def __init__(
        self,
        database: Database,
        read: Callable[[K], V | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._read = read
        self._clock = clock
        # A late thread writes into the page that it started with, which no thread reads any more.
        self._page: tuple[int | None, dict[K, V]] = (None, {})
        self._confirmed_at = -math.inf
        self._failed_at: float | None = None
        self._trying = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, or None if there is none; this may wait for the database.

        While the database is unreachable, one caller at a time retries it; the others do not wait.
        """
        now = self._clock()
        if self._failed_at is None:
            return self._fetch(key, now)
        if now - self._failed_at < RETRY_S or not self._trying.acquire(blocking=False):
            return self._stale(key, now)
        try:
            return self._fetch(key, now)
        finally:
            self._trying.release()

    def at_hand(self, key: K) -> V | None:
        """Return the value if it is in memory and nothing has changed since; never waits for a server."""
        revision, values = self._page
        try:
            unchanged = revision is not None and revision == self._database.revision()
        except StoreFailed:
            unchanged = False
        return values.get(key) if unchanged else None

    def _fetch(self, key: K, now: float) -> V | None:
        try:
            value = self._look_up(key)
        except StoreFailed:
            self._failed_at = self._clock()
            return self._stale(key, now)
        self._confirmed_at, self._failed_at = now, None
        return value

    def _look_up(self, key: K) -> V | None:
        revision = self._database.revision()
        if revision is not None and revision != self._page[0]:
            self._page = (revision, {})
        values = self._page[1]
        if revision is not None and key in values:
            return values[key]
        value = self._read(key)
        if value is None:
            values.pop(key, None)
        elif len(values) < MAX_RECORDS or key in values:
            values[key] = value
        return value

    def _stale(self, key: K, now: float) -> V | None:
        value = self._page[1].get(key)
        if value is None or now - self._confirmed_at > TRUST_S:
            raise StoreFailed(
                f"{self._database.shown}: the database is unreachable", hint="it is retried every second"
            )
        return value
