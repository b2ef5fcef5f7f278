"""What whoever leads reads and writes of the records: every write is fenced by its epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from windlass.control.plane.job_store import (
    ALONE,
    COLUMNS,
    JobStore,
    QueuePosition,
    add_events,
    entry_of,
    next_version,
)
from windlass.control.plane.leader_lease import fence
from windlass.control.plane.queued_job import JobEntry
from windlass.control.scheduler.snapshot import TenantQuota
from windlass.store.database import Transaction

LEADER = "control plane"
_MOVE = """UPDATE plane_jobs SET phase = ?, members = ?, attempts = ?, preemptions = ?, reason = ?,
since_s = ?, placed_s = ?, begun_s = ?, ended_s = ?, version = ? WHERE uid = ?"""


@dataclass(frozen=True, slots=True)
class Transition:
    """A job that comes to another phase, and what its owner is told of it."""

    entry: JobEntry
    at_s: float
    what: str


class LeaderStore(Protocol):
    """What the reconcile loop needs of the records; the simulator of large fleets has one in memory."""

    def changed(self, after: int) -> Sequence[JobEntry]:
        """Return the jobs written since a version; since 0, all that are not over."""

    def apply(self, moves: Sequence[Transition]) -> int:
        """Write moves together, or none if another one leads; return the version of that write."""

    def tell_waits(self, waits: Mapping[str, QueuePosition | None]) -> None:
        """Write what jobs wait for, by uid; None for those that wait no longer."""

    def shares(self) -> Mapping[str, TenantQuota]:
        """Return what tenants may have, and had lately."""

    def tell_usage(self, used: Mapping[str, float], now_s: float) -> None:
        """Write what tenants had lately."""


class FencedLeaderStore:
    """The ledger in the database of a control plane."""

    def __init__(self, records: JobStore, epoch: Callable[[], int | None]) -> None:
        self._records, self._database = records, records.database
        self._check = fence(epoch)

    def changed(self, after: int) -> list[JobEntry]:
        where = "version > ?" if after else "ended_s IS NULL AND version > ?"
        sql = f"SELECT {COLUMNS} FROM plane_jobs WHERE {where} ORDER BY version"
        return [entry_of(row) for row in self._database.read(sql, after)]

    def apply(self, moves: Sequence[Transition]) -> int:
        def work(transaction: Transaction) -> int:
            self._check(transaction)
            version = next_version(transaction)
            for move in moves:
                e = move.entry
                own = (e.phase, e.members, e.attempts, e.preemptions, e.reason)
                times = (e.since_s, e.placed_s, e.begun_s, e.ended_s)
                transaction.execute(_MOVE, *own, *times, version, e.uid)
                if e.phase != "queued":
                    transaction.execute("DELETE FROM plane_waits WHERE uid = ?", e.uid)
            add_events(transaction, [(m.entry.uid, m.at_s, LEADER, m.what) for m in moves if m.what])
            return version

        return self._database.atomically(work, alone=ALONE)

    def tell_waits(self, waits: Mapping[str, QueuePosition | None]) -> None:
        def work(transaction: Transaction) -> None:
            self._check(transaction)
            for uid, wait in waits.items():
                if wait is None:
                    transaction.execute("DELETE FROM plane_waits WHERE uid = ?", uid)
                    continue
                transaction.execute(
                    """INSERT INTO plane_waits VALUES (?, ?, ?) ON CONFLICT (uid) DO UPDATE SET
                    place = excluded.place, reason = excluded.reason""",
                    *(uid, wait.place, wait.reason),
                )

        self._database.atomically(work, light=True, alone="plane_waits")

    def shares(self) -> Mapping[str, TenantQuota]:
        return self._records.shares()

    def tell_usage(self, used: Mapping[str, float], now_s: float) -> None:
        def work(transaction: Transaction) -> None:
            self._check(transaction)
            for tenant, each in used.items():
                transaction.execute(
                    """INSERT INTO plane_usage VALUES (?, ?, ?) ON CONFLICT (tenant) DO UPDATE SET
                    used = excluded.used, at_s = excluded.at_s""",
                    *(tenant, each, now_s),
                )

        self._database.atomically(work, light=True, alone="plane_usage")
