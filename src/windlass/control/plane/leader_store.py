"""The leader's access to the job tables.

Each write checks the leader's epoch and fails if another process has taken over.
"""

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
_TRANSITION = """UPDATE plane_jobs SET phase = ?, members = ?, attempts = ?, preemptions = ?, reason = ?,
since_s = ?, placed_s = ?, begun_s = ?, ended_s = ?, version = ? WHERE uid = ?"""


@dataclass(frozen=True, slots=True)
class Transition:
    """A job in its new phase, and the event text for its owner."""

    entry: JobEntry
    at_s: float
    what: str


class LeaderStore(Protocol):
    """What the reconcile loop needs from the job tables; the fleet simulator has one in memory."""

    def changed(self, after: int) -> Sequence[JobEntry]:
        """Return the jobs written after a version; after 0, all that are not over."""

    def apply(self, transitions: Sequence[Transition]) -> int:
        """Write all transitions, or none if another process leads; return the version of that write."""

    def set_queue_positions(self, waits: Mapping[str, QueuePosition | None]) -> None:
        """Write why jobs wait, by uid; None for those that no longer wait."""

    def shares(self) -> Mapping[str, TenantQuota]:
        """Return the quotas of tenants with their recent usage."""

    def set_usage(self, used: Mapping[str, float], now_s: float) -> None:
        """Write the recent usage of tenants."""


class FencedLeaderStore:
    """The leader store in the database of a control plane."""

    def __init__(self, records: JobStore, epoch: Callable[[], int | None]) -> None:
        self._records, self._database = records, records.database
        self._check = fence(epoch)

    def changed(self, after: int) -> list[JobEntry]:
        where = "version > ?" if after else "ended_s IS NULL AND version > ?"
        sql = f"SELECT {COLUMNS} FROM plane_jobs WHERE {where} ORDER BY version"
        return [entry_of(row) for row in self._database.read(sql, after)]

    def apply(self, transitions: Sequence[Transition]) -> int:
        def work(transaction: Transaction) -> int:
            self._check(transaction)
            version = next_version(transaction)
            for transition in transitions:
                e = transition.entry
                own = (e.phase, e.members, e.attempts, e.preemptions, e.reason)
                times = (e.since_s, e.placed_s, e.begun_s, e.ended_s)
                transaction.execute(_TRANSITION, *own, *times, version, e.uid)
                if e.phase != "queued":
                    transaction.execute("DELETE FROM plane_waits WHERE uid = ?", e.uid)
            add_events(transaction, [(t.entry.uid, t.at_s, LEADER, t.what) for t in transitions if t.what])
            return version

        return self._database.atomically(work, alone=ALONE)

    def set_queue_positions(self, waits: Mapping[str, QueuePosition | None]) -> None:
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

    def set_usage(self, used: Mapping[str, float], now_s: float) -> None:
        def work(transaction: Transaction) -> None:
            self._check(transaction)
            for tenant, each in used.items():
                transaction.execute(
                    """INSERT INTO plane_usage VALUES (?, ?, ?) ON CONFLICT (tenant) DO UPDATE SET
                    used = excluded.used, at_s = excluded.at_s""",
                    *(tenant, each, now_s),
                )

        self._database.atomically(work, light=True, alone="plane_usage")
