"""Leader election among control planes: a row of the database whose heartbeat counter the leader increments.

The algorithm is that of store.lease; a claim is one UPDATE that names the epoch and the counter that it has
seen. A leader that was suspended meanwhile finds a higher epoch, and each of its writes is refused in its own
transaction (`fence`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from windlass.spec.errors import InUse
from windlass.store.database import Database, Transaction
from windlass.store.lease import LeaseCandidate, LeaseState

BEAT_S = 0.5
STALE_S = 2.0
_CLAIM = """UPDATE plane_leases SET epoch = epoch + 1, holder = ?, address = ?, beat = 0, beat_s = ?
WHERE name = 'leader' AND epoch = ? AND beat = ? RETURNING epoch"""
_BEAT = """UPDATE plane_leases SET beat = beat + 1, beat_s = ?
WHERE name = 'leader' AND epoch = ? RETURNING epoch"""
_RESIGN = "UPDATE plane_leases SET beat = -1 WHERE name = 'leader' AND epoch = ?"


class LostLeadership(InUse):
    """Another control plane is the leader."""


class DatabaseLease(LeaseCandidate):
    """A candidate for the lease of a database."""

    def __init__(self, database: Database, holder: str, address: str = "") -> None:
        super().__init__(stale_s=STALE_S)
        self._database, self._holder, self._address = database, holder, address

    def _read(self) -> LeaseState:
        epoch, beat, _, _ = _row(self._database)
        return LeaseState(epoch, beat, released=not epoch or beat < 0)

    def _claim(self, state: LeaseState) -> int | None:
        args = (self._holder, self._address, time.time(), state.epoch, state.counter)
        taken = self._database.write(_CLAIM, *args, light=True)
        return int(taken[0][0]) if taken else None

    def _beat(self, epoch: int) -> bool:
        return bool(self._database.write(_BEAT, time.time(), epoch, light=True))

    def _release(self, epoch: int) -> None:
        self._database.write(_RESIGN, epoch, light=True)


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
