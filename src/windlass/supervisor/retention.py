"""Deletes old audit records once a day, as the operator's retention setting says.

A controller that never changes what runs. Folding verifies the whole audit log first, so a thread does it.
Several supervisors of one database may fold at the same time; the second finds nothing left to fold.
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

ACTOR = Actor("", "supervisor")

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
        """Start to fold, if a day has passed."""
        if self._keep_audit_s is not None and now >= self._due_at and not self.is_busy:
            self._due_at = now + DAY_S
            self._thread = threading.Thread(target=self._fold, args=(self._keep_audit_s,), daemon=True)
            self._thread.start()
        return Patch()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Wait for a fold under way."""
        if self._thread is not None:
            self._thread.join()

    def _fold(self, keep_s: float) -> None:
        now_s = self._clock()
        try:
            fold(self._database, ACTOR, older_than_s=now_s - keep_s, now_s=now_s)
        except WindlassError as error:
            log.warning("old records of the audit log were not folded: %s", error.message)
