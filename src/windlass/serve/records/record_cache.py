"""Records that are looked up at every request: kept in memory for as long as nobody committed a change.

The service stays up while its database cannot be reached: what was known when it last could be goes on to be
true for some minutes, and the database is asked again every second.
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

MOST = 20_000
TRUST_S = 300.0
ASK_AGAIN_S = 1.0


class Remembered(Generic[K, V]):
    """The values of some keys, read once for each revision of the database. Threads may share it."""

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
        # A thread that is late writes into the page that it began with, which nobody may look at any more.
        self._page: tuple[int | None, dict[K, V]] = (None, {})
        self._sure_at = -math.inf
        self._failed_at: float | None = None
        self._trying = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, or None if there is none; this may wait for the database.

        While the database is away, one caller at a time finds out whether it is back; none else waits.
        """
        now = self._clock()
        if self._failed_at is None:
            return self._ask(key, now)
        if now - self._failed_at < ASK_AGAIN_S or not self._trying.acquire(blocking=False):
            return self._unsure(key, now)
        try:
            return self._ask(key, now)
        finally:
            self._trying.release()

    def at_hand(self, key: K) -> V | None:
        """Return the value if it is in memory and nothing changed since; this waits for no server."""
        revision, values = self._page
        try:
            unchanged = revision is not None and revision == self._database.revision()
        except StoreFailed:
            unchanged = False
        return values.get(key) if unchanged else None

    def _ask(self, key: K, now: float) -> V | None:
        try:
            value = self._look_up(key)
        except StoreFailed:
            self._failed_at = self._clock()
            return self._unsure(key, now)
        self._sure_at, self._failed_at = now, None
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
        elif len(values) < MOST or key in values:
            values[key] = value
        return value

    def _unsure(self, key: K, now: float) -> V | None:
        value = self._page[1].get(key)
        if value is None or now - self._sure_at > TRUST_S:
            raise StoreFailed(
                f"{self._database.shown}: cannot be asked now", hint="it is asked again every second"
            )
        return value
