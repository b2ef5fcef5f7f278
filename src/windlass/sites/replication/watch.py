"""Publishes or pulls at intervals. If the store is unavailable, it retries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from windlass.sites.replication.artifact_store import ArtifactStore, open_depot
from windlass.sites.replication.publish import Publisher
from windlass.sites.replication.puller import Puller
from windlass.spec.errors import Damaged, InUse, NotFound, StoreFailed
from windlass.spec.protocol.backoff import Backoff
from windlass.spec.sites import Replicate

Tell = Callable[[dict[str, Any]], None]
Worker = Callable[[ArtifactStore], Publisher | Puller]
PASSING = (StoreFailed, Damaged, InUse, NotFound)
"""Errors that the next pass may not have."""
WORTH = {"published", "forgotten", "brought", "removed", "refused"}
"""Results that make a pass worth an event."""


class ReplicationWatch:
    """Repeats passes of a Publisher or a Puller until it is stopped."""

    def __init__(
        self, rule: Replicate, worker: Worker, tell: Tell, stopped: threading.Event, *, create: bool
    ) -> None:
        self._rule, self._worker, self._tell, self._create = rule, worker, tell, create
        self._side: Publisher | Puller | None = None
        self._stopped, self._failed = stopped, 0
        self._last_event: dict[str, Any] | None = None

    def run(self) -> None:
        """Repeat passes until stopped."""
        while not self._stopped.is_set():
            self._stopped.wait(self.step())

    def step(self) -> float:
        """Do one pass; return the seconds until the next."""
        try:
            if self._side is None:
                self._side = self._worker(open_depot(self._rule.depot, create=self._create))
            done = self._side.step().facts()
        except PASSING as error:
            self._failed += 1
            self._emit({"event": "failed", "why": error.message})
            backoff = Backoff(first_s=min(1.0, self._rule.every), max_s=max(10.0, self._rule.every))
            return backoff.wait_s(self._failed, random.random())
        self._failed = 0
        self._emit(
            {"event": "replicated", **done} if any(done[name] for name in WORTH & done.keys()) else None
        )
        return self._rule.every

    def _emit(self, event: dict[str, Any] | None) -> None:
        """Emit an event unless it equals the last: a store that is down for a day is one line."""
        if event is not None and event != self._last_event:
            self._tell(event)
        self._last_event = event
