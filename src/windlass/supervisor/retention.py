"""Lets old records of a service leave: once a day, what the operator does not want kept any longer.

A decider that changes nothing of what runs. The audit log is read whole before it is folded, so a thread does
it; several supervisors of one database may do so at once, and one finds what the other left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from windlass.serve.records.audit_log import Actor
from windlass.serve.records.audit_verify import fold
from windlass.spec.errors import WindlassError
from windlass.spec.privacy import DAY_S
from windlass.store.database import Database
from windlass.supervisor.state import Patch, ServiceState

KEEPER = Actor("", "supervisor")

log = logging.getLogger(__name__)


class Retention:
    """Folds the audit log of one service."""

    def __init__(
        self, database: Database, *, keep_audit_s: float | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._keep_audit_s, self._clock = database, keep_audit_s, clock
        self._due_at = -DAY_S
        self._thread: threading.Thread | None = None

    def decide(self, view: ServiceState, now: float) -> Patch:
        """Begin to fold, if a day has passed."""
        if self._keep_audit_s is not None and now >= self._due_at and not self.is_busy:
            self._due_at = now + DAY_S
            self._thread = threading.Thread(target=self._fold, args=(self._keep_audit_s,), daemon=True)
            self._thread.start()
        return Patch()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Wait for what has begun."""
        if self._thread is not None:
            self._thread.join()

    def _fold(self, keep_s: float) -> None:
        now_s = self._clock()
        try:
            fold(self._database, KEEPER, older_than_s=now_s - keep_s, now_s=now_s)
        except WindlassError as error:
            log.warning("old records of the audit log were not folded: %s", error.message)
