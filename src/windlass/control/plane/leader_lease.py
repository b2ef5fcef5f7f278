"""Leader election among control planes: a row of the database whose heartbeat counter the leader increments.

A candidate takes the next epoch once the counter has not changed for STALE_S on the candidate's own monotonic
clock; clocks of different machines are never compared. A leader that was suspended meanwhile finds a higher
epoch, and each of its writes is refused in its own transaction (`fence`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from windlass.spec.errors import InUse
from windlass.store.database import Database, Transaction

BEAT_S = 0.5
STALE_S = 2.0
_CLAIM = """UPDATE plane_leases SET epoch = epoch + 1, holder = ?, address = ?, beat = 0, beat_s = ?
WHERE name = 'leader' AND epoch = ? AND beat = ? RETURNING epoch"""
_BEAT = """UPDATE plane_leases SET beat = beat + 1, beat_s = ?
WHERE name = 'leader' AND epoch = ? RETURNING epoch"""
_RESIGN = "UPDATE plane_leases SET beat = -1 WHERE name = 'leader' AND epoch = ?"


class LostLeadership(InUse):
    """Another control plane is the leader."""


class DatabaseLease:
    """One candidate's view of the lease. Call `step` a few times a second."""

    def __init__(self, database: Database, holder: str, address: str = "") -> None:
        self._database, self._holder, self._address = database, holder, address
        self.epoch: int | None = None
        """The epoch that this candidate holds; None while it is not the leader."""
        self._seen: tuple[int, int] | None = None
        self._seen_s = 0.0
        self._beat_s = float("-inf")

    def step(self, now_s: float) -> bool:
        """Renew the lease, or take it if it has expired; return whether this candidate leads."""
        if self.epoch is None:
            return self._take_vacant(now_s)
        if not self._database.write(_BEAT, time.time(), self.epoch, light=True):
            self.epoch = None
            return False
        self._beat_s = now_s
        return True

    def holds(self, now_s: float) -> bool:
        """Whether no other candidate can lead yet; false STALE_S after the last heartbeat."""
        return self.epoch is not None and now_s - self._beat_s < STALE_S

    def resign(self) -> None:
        """Release the lease, so that others need not wait for it to expire."""
        if self.epoch is not None:
            self._database.write(_RESIGN, self.epoch, light=True)
            self.epoch = None

    def _take_vacant(self, now_s: float) -> bool:
        epoch, beat, _, _ = _row(self._database)
        if (epoch, beat) != self._seen:
            self._seen, self._seen_s = (epoch, beat), now_s
        if epoch and beat >= 0 and now_s - self._seen_s < STALE_S:
            return False
        args = (self._holder, self._address, time.time(), epoch, beat)
        taken = self._database.write(_CLAIM, *args, light=True)
        if taken:
            self.epoch, self._beat_s = int(taken[0][0]), now_s
        return bool(taken)


def leader(database: Database) -> tuple[int, str, str]:
    """Return the newest epoch, its holder and the holder's address, whether or not it is alive."""
    epoch, _, holder, address = _row(database)
    return epoch, holder, address


def fence(epoch: Callable[[], int | None]) -> Callable[[Transaction], None]:
    """Return a check for the start of a transaction: raises unless the epoch is the current one."""

    def check(transaction: Transaction) -> None:
        held = epoch()
        found = transaction.execute("SELECT epoch FROM plane_leases WHERE name = 'leader'")[0][0]
        if held is None or int(found) != held:
            raise LostLeadership(f"epoch {held} is over: epoch {found} leads")

    return check


def _row(database: Database) -> tuple[int, int, str, str]:
    found = database.read("SELECT epoch, beat, holder, address FROM plane_leases WHERE name = 'leader'")[0]
    return int(found[0]), int(found[1]), str(found[2]), str(found[3])
