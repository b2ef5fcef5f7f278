"""The job tables, from the side of users: submit, list, stop, priorities, quotas, events.

Any control plane reads and writes here, whether it leads or not: owners write what they want, never a phase.
Only the leader writes phases (`leader_store`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.control.plane.queued_job import JobEntry, Kind, ResourceNeeds, need_from
from windlass.control.plane.tables import PLANE
from windlass.control.scheduler.snapshot import QuotaLimit, TenantQuota
from windlass.spec.errors import BadInput, InUse, NotFound, did_you_mean
from windlass.store.database import Conflict, Database, Row, Transaction, open_database, sqlite_url

FILE = "plane.db"
COLUMNS = (
    "uid, tenant, name, kind, job, need, by_whom, submitted_s, desired, priority, phase, members, attempts,"
    " preemptions, reason, since_s, placed_s, begun_s, ended_s, version"
)
ALONE = "plane_jobs"
"""The table that every writer of a job locks, so that versions have the order of commits."""
_NEXT = "UPDATE plane_counters SET number = number + ? WHERE name = ? RETURNING number"


class NameTaken(InUse):
    """An unfinished job already has that name."""


@dataclass(frozen=True)
class JobEvent:
    """What happened to a job, as a sentence."""

    number: int
    at_s: float
    by: str
    what: str


Events = list[JobEvent]


@dataclass(frozen=True)
class QueuePosition:
    """A job's place in the queue, from 1, and why it waits."""

    place: int
    reason: str


@dataclass(frozen=True)
class Submission:
    """A job to be queued. `token` identifies the request: sent twice, it makes one job."""

    tenant: str
    name: str
    kind: Kind
    text: str
    need: ResourceNeeds
    by: str
    priority: int = 0
    token: str = ""
    digest: str = ""
    """Of the request; the same token with another digest is refused."""


def open_plane(url: str) -> Database:
    """Open the database of a control plane; create missing tables."""
    return open_database(url, (PLANE,))


def plane_url(home: Path, given: str | None = None) -> str:
    """Return the URL of the database: as given, or HOME/plane.db."""
    return given or sqlite_url(home / FILE)


class JobStore:
    """The jobs, shares and events of one control plane."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        uids: Callable[[], str] = lambda: secrets.token_hex(5),
    ) -> None:
        self.database = database
        self._clock, self._uids = clock, uids

    def identity(self) -> str:
        """Return the id by which this control plane recognises its groups; created at the first call."""
        made = secrets.token_hex(6)
        self.database.write("INSERT INTO plane_facts VALUES ('plane', ?) ON CONFLICT DO NOTHING", made)
        return str(self.database.read("SELECT fact FROM plane_facts WHERE name = 'plane'")[0][0])

    def submit(self, submission: Submission) -> tuple[JobEntry, bool]:
        """Put a job into the queue. Return it, and False if this request had already done so."""
        now_s = self._clock()

        def work(transaction: Transaction) -> tuple[JobEntry, bool]:
            if submission.token and (earlier := _submitted(transaction, submission)) is not None:
                return earlier, False
            entry = JobEntry(
                uid=self._uids(),
                tenant=submission.tenant,
                name=submission.name,
                kind=submission.kind,
                text=submission.text,
                need=submission.need,
                by=submission.by,
                submitted_s=now_s,
                priority=submission.priority,
                since_s=now_s,
                version=next_version(transaction),
            )
            transaction.execute(f"INSERT INTO plane_jobs VALUES ({', '.join('?' * 20)})", *_row_of(entry))
            if submission.token:
                row = (submission.tenant, submission.token, submission.digest, entry.uid, now_s)
                transaction.execute("INSERT INTO plane_submits VALUES (?, ?, ?, ?, ?)", *row)
            add_events(transaction, [(entry.uid, now_s, submission.by, "entered the queue")])
            return entry, True

        self._refuse_taken(submission)
        try:
            return self.database.atomically(work, alone=ALONE)
        except Conflict:
            self._refuse_taken(submission)
            raise

    def find(self, reference: str, tenant: str | None = None) -> JobEntry:
        """Return a job by its uid, by TENANT/NAME, or by NAME within a tenant: the newest of that name."""
        owner, slash, name = reference.rpartition("/")
        owner = owner if slash else tenant or ""
        sql = f"SELECT {COLUMNS} FROM plane_jobs WHERE "
        if slash or tenant is not None:
            found = self.database.read(
                f"{sql} tenant = ? AND name = ? ORDER BY submitted_s DESC, version DESC LIMIT 1", owner, name
            )
        else:
            found = self.database.read(
                f"{sql} name = ? ORDER BY submitted_s DESC, version DESC LIMIT 1", name
            )
        if not found and not slash:
            found = self.database.read(f"{sql} uid = ?", reference)
        if not found or tenant not in (None, found[0][1]):
            raise NotFound(f"no job '{reference}' in the queue", hint=self._near(name, tenant))
        return entry_of(found[0])

    def list(
        self,
        *,
        tenant: str | None = None,
        phases: Sequence[str] = (),
        after: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[JobEntry]:
        """Return jobs by submission time, oldest first, after (submitted_s, uid)."""
        wheres, args = ["1 = 1"], list[Any]()
        if tenant is not None:
            wheres.append("tenant = ?")
            args.append(tenant)
        if phases:
            wheres.append(f"phase IN ({', '.join('?' * len(phases))})")
            args += phases
        if after is not None:
            wheres.append("(submitted_s > ? OR (submitted_s = ? AND uid > ?))")
            args += [after[0], after[0], after[1]]
        sql = (
            f"SELECT {COLUMNS} FROM plane_jobs WHERE {' AND '.join(wheres)} ORDER BY submitted_s, uid LIMIT ?"
        )
        return [entry_of(row) for row in self.database.read(sql, *args, limit)]

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """Return how many jobs are in each phase."""
        where, args = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        sql = f"SELECT phase, COUNT(*) FROM plane_jobs {where} GROUP BY phase"
        return {str(phase): int(count) for phase, count in self.database.read(sql, *args)}

    def unfinished(self, tenant: str) -> int:
        """Return how many jobs of a tenant wait or run."""
        sql = "SELECT COUNT(*) FROM plane_jobs WHERE tenant = ? AND ended_s IS NULL"
        return int(self.database.read(sql, tenant)[0][0])

    def stop(self, uid: str, by: str) -> JobEntry:
        """Request the end of a job; a finished job is unchanged."""
        return self._change(uid, by, "desired", "stop", "a stop was requested")

    def set_priority(self, uid: str, priority: int, by: str) -> JobEntry:
        """Change the priority of a job."""
        return self._change(uid, by, "priority", priority, f"its priority was set to {priority}")

    def waits(self, uids: Sequence[str]) -> dict[str, QueuePosition]:
        """Return why jobs wait, as the leader last wrote it."""
        found: dict[str, QueuePosition] = {}
        for start in range(0, len(uids), 500):
            some = uids[start : start + 500]
            sql = f"SELECT uid, place, reason FROM plane_waits WHERE uid IN ({', '.join('?' * len(some))})"
            found |= {str(u): QueuePosition(int(p), str(r)) for u, p, r in self.database.read(sql, *some)}
        return found

    def events(self, uid: str, *, after: int = 0, limit: int = 1000) -> Events:
        """Return what happened to a job, oldest first."""
        sql = "SELECT number, at_s, by_whom, what FROM plane_events WHERE uid = ? AND number > ?"
        rows = self.database.read(f"{sql} ORDER BY number LIMIT ?", uid, after, limit)
        return [JobEvent(int(n), float(at), str(by), str(what)) for n, at, by, what in rows]

    def shares(self) -> dict[str, TenantQuota]:
        """Return the quotas of all tenants that have one set or have recent usage."""
        used = {str(t): float(u) for t, u in self.database.read("SELECT tenant, used FROM plane_usage")}
        found = {tenant: TenantQuota(tenant, used=each) for tenant, each in used.items()}
        columns = "tenant, weight, cores, memory_bytes, gpus, max_jobs, max_priority"
        for row in self.database.read(f"SELECT {columns} FROM plane_shares"):
            tenant, weight, cores, memory_bytes, gpus, max_jobs, max_priority = row
            quota, usage = QuotaLimit(cores, memory_bytes, gpus), used.get(str(tenant), 0.0)
            found[str(tenant)] = TenantQuota(tenant, weight, quota, max_jobs, max_priority, usage)
        return found

    def set_share(self, share: TenantQuota) -> None:
        """Set a tenant's quota; None is no limit."""
        quota = share.quota
        self.database.write(
            """INSERT INTO plane_shares VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant) DO UPDATE SET
            weight = excluded.weight, cores = excluded.cores, memory_bytes = excluded.memory_bytes,
            gpus = excluded.gpus, max_jobs = excluded.max_jobs, max_priority = excluded.max_priority""",
            *(share.tenant, share.weight, quota.cores, quota.memory_bytes, quota.gpus),
            *(share.max_jobs, share.max_priority),
        )

    def _change(self, uid: str, by: str, column: str, value: object, what: str) -> JobEntry:
        """Write a column that belongs to the owner, never the phase."""
        now_s = self._clock()

        def work(transaction: Transaction) -> JobEntry:
            found = transaction.execute(f"SELECT {COLUMNS} FROM plane_jobs WHERE uid = ?", uid)
            if not found:
                raise NotFound(f"no job {uid} in the queue")
            before = entry_of(found[0])
            if before.over or getattr(before, column) == value:
                return before
            sql = f"UPDATE plane_jobs SET {column} = ?, version = ? WHERE uid = ? RETURNING {COLUMNS}"
            entry = entry_of(transaction.execute(sql, value, next_version(transaction), uid)[0])
            add_events(transaction, [(uid, now_s, by, what)])
            return entry

        return self.database.atomically(work, alone=ALONE)

    def _refuse_taken(self, submission: Submission) -> None:
        """Refuse a second job of a name while the first is unfinished, unless this request is a repeat."""
        sql = "SELECT uid, phase FROM plane_jobs WHERE tenant = ? AND name = ? AND ended_s IS NULL"
        found = self.database.read(sql, submission.tenant, submission.name)
        if not found:
            return
        sql = "SELECT uid FROM plane_submits WHERE tenant = ? AND token = ?"
        if submission.token and self.database.read(sql, submission.tenant, submission.token):
            return
        raise NameTaken(
            f"job {submission.tenant}/{submission.name} already exists and is {found[0][1]}",
            hint="stop it first, or choose another name",
        )

    def _near(self, name: str, tenant: str | None) -> str:
        known = sorted({entry.name for entry in self.list(tenant=tenant, limit=500)})
        return did_you_mean(name, known) if known else "no job was submitted yet"


def next_version(transaction: Transaction) -> int:
    return int(transaction.execute(_NEXT, 1, "version")[0][0])


def add_events(transaction: Transaction, events: Sequence[tuple[str, float, str, str]]) -> None:
    """Write events: (uid, time, by whom, what)."""
    if not events:
        return
    last = int(transaction.execute(_NEXT, len(events), "event")[0][0])
    for number, event in enumerate(events, last - len(events) + 1):
        transaction.execute("INSERT INTO plane_events VALUES (?, ?, ?, ?, ?)", number, *event)


def entry_of(row: Row) -> JobEntry:
    """Read a row of COLUMNS."""
    uid, tenant, name, kind, text, need, *rest = row
    return JobEntry(uid, tenant, name, kind, text, need_from(need), *rest)


def _submitted(transaction: Transaction, submission: Submission) -> JobEntry | None:
    """Return the job that an earlier copy of this request made."""
    sql = "SELECT uid, digest FROM plane_submits WHERE tenant = ? AND token = ?"
    found = transaction.execute(sql, submission.tenant, submission.token)
    if not found:
        return None
    uid, digest = found[0]
    if digest != submission.digest:
        raise BadInput(
            "this idempotency key was used for a different request",
            hint="use a new key for every request, and the same key only to repeat one",
        )
    return entry_of(transaction.execute(f"SELECT {COLUMNS} FROM plane_jobs WHERE uid = ?", uid)[0])


def _row_of(entry: JobEntry) -> tuple[object, ...]:
    return (
        *(entry.uid, entry.tenant, entry.name, entry.kind, entry.text, entry.need.text(), entry.by),
        *(entry.submitted_s, entry.desired, entry.priority, entry.phase, entry.members, entry.attempts),
        *(
            entry.preemptions,
            entry.reason,
            entry.since_s,
            entry.placed_s,
            entry.begun_s,
            entry.ended_s,
            entry.version,
        ),
    )
