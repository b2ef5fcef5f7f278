"""Publishes or brings again and again. A store that is away for a while is asked again, and no more."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from windlass.sites.replication.artifact_store import ArtifactStore, open_depot
from windlass.sites.replication.publish import Publisher
from windlass.sites.replication.puller import Puller
from windlass.spec.errors import Damaged, InUse, NotFound, StoreFailed
from windlass.spec.sites import Replicate
from windlass.store.uploads import Patience

Tell = Callable[[dict[str, Any]], None]
Worker = Callable[[ArtifactStore], Publisher | Puller]
PASSING = (StoreFailed, Damaged, InUse, NotFound)
"""What the next look may find otherwise."""
WORTH = {"published", "forgotten", "brought", "removed", "refused"}
"""What makes a pass worth telling of."""


class ReplicationWatch:
    """One side of the depot, until it is stopped."""

    def __init__(
        self, rule: Replicate, worker: Worker, tell: Tell, stopped: threading.Event, *, create: bool
    ) -> None:
        self._rule, self._worker, self._tell, self._create = rule, worker, tell, create
        self._side: Publisher | Puller | None = None
        self._stopped, self._failed = stopped, 0
        self._said: dict[str, Any] | None = None

    def run(self) -> None:
        """Go on until it is stopped."""
        while not self._stopped.is_set():
            self._stopped.wait(self.step())

    def step(self) -> float:
        """Do one pass; return how long to wait for the next."""
        try:
            if self._side is None:
                self._side = self._worker(open_depot(self._rule.depot, create=self._create))
            done = self._side.step().facts()
        except PASSING as error:
            self._failed += 1
            self._say({"event": "failed", "why": error.message})
            patience = Patience(first_s=min(1.0, self._rule.every), max_s=max(10.0, self._rule.every))
            return patience.wait_s(self._failed, random.random())
        self._failed = 0
        self._say(
            {"event": "replicated", **done} if any(done[name] for name in WORTH & done.keys()) else None
        )
        return self._rule.every

    def _say(self, event: dict[str, Any] | None) -> None:
        """Tell what happened, once: a store that is away for a day is one line."""
        if event is not None and event != self._said:
            self._tell(event)
        self._said = event
