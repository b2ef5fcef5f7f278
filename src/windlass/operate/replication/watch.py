"""Publishes or brings again and again. A store that is away for a while is asked again, and no more."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from windlass.operate.replication.bring import Bringer
from windlass.operate.replication.depot import Depot, open_depot
from windlass.operate.replication.publish import Publisher
from windlass.spec.errors import Damaged, InUse, NotFound, StoreFailed
from windlass.spec.sites import Replicate
from windlass.store.uploads import Patience

Tell = Callable[[dict[str, Any]], None]
Worker = Callable[[Depot], Publisher | Bringer]
PASSING = (StoreFailed, Damaged, InUse, NotFound)
"""What the next look may find otherwise."""


class Watch:
    """One side of the depot, until it is stopped."""

    def __init__(self, rule: Replicate, worker: Worker, tell: Tell, *, create: bool) -> None:
        self._rule, self._worker, self._tell, self._create = rule, worker, tell, create
        self._side: Publisher | Bringer | None = None
        self._stopped, self._failed = threading.Event(), 0

    def run(self) -> None:
        """Go on until `stop`."""
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
            self._tell({"event": "failed", "why": error.message})
            patience = Patience(first_s=min(1.0, self._rule.every), most_s=max(10.0, self._rule.every))
            return patience.wait_s(self._failed, random.random())
        self._failed = 0
        if any(
            done[name] for name in ("published", "forgotten", "brought", "removed", "refused") if name in done
        ):
            self._tell({"event": "replicated", **done})
        return self._rule.every

    def stop(self) -> None:
        self._stopped.set()
