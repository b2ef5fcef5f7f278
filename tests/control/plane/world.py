"""A cluster that is nothing but a table, and a process that dies after any of its side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from windlass.cluster.backend import ClusterState, Group, GroupStatus, Member, Node, Resources, refuse_other
from windlass.control.plane.job_store import JobStore, Submission
from windlass.control.plane.leader_lease import STALE_S, DatabaseLease
from windlass.control.plane.leader_store import FencedLeaderStore
from windlass.control.plane.queued_job import JobEntry, ResourceNeeds
from windlass.control.plane.reconcile import Reconciler, ReconcileResult
from windlass.control.scheduler.snapshot import JobDecision, MemberResources, PendingJob, Snapshot
from windlass.spec.errors import InUse, ProcessFailed
from windlass.store.sql import Database, Row, Transaction


class Died(BaseException):
    """What a SIGKILL looks like from within: nothing after it is done, and nobody catches it."""


@dataclass
class Fate:
    """Ends the process after its n-th side effect; never, if n is 0."""

    after: int = 0
    count: int = 0

    def effect(self) -> None:
        self.count += 1
        if self.count == self.after:
            raise Died


@dataclass
class World:
    """Machines and what runs on them. Work that was done is kept when a group is stopped, as by a save."""

    cores: float = 4.0
    fate: Fate = field(default_factory=Fate)
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """Ticks of work that are left, by group."""
    ends: dict[str, int] = field(default_factory=dict)
    """How often work was done to its end."""
    guarded: set[str] = field(default_factory=set)
    """Groups that somebody looks after: nothing becomes of the others until they are asked for once more."""
    away: bool = False
    now_s: float = 1000.0

    def tick(self) -> None:
        self.now_s += 1.0
        for key in sorted(self.guarded & self.groups.keys()):
            standing = self.groups[key]
            if standing.stopping:
                del self.groups[key]
            elif standing.running:
                self._work(key, standing)
            if standing.stopping or self.groups[key].over:
                self.guarded.discard(key)
        for key in sorted(self.guarded & self.groups.keys()):
            self._start(key)

    def used(self) -> float:
        return sum((s.group.resources.cores or 0.0) * s.running for s in self.groups.values())

    def lose(self, key: str) -> None:
        """Let a group be gone without a word."""
        del self.groups[key]

    def _work(self, key: str, standing: GroupStatus) -> None:
        code = standing.group.args[1] if len(standing.group.args) > 1 else "0"
        left = self.left.setdefault(key, int(standing.group.args[0]))
        if left > 0:
            self.left[key] = left - 1
            if left > 1:
                return
            self.ends[key] = self.ends.get(key, 0) + 1
        state = "failed" if code != "0" else "done"
        self._set(key, state, int(code), reason="ended badly" if code != "0" else "")

    def _start(self, key: str) -> None:
        standing = self.groups[key]
        pending = [m for m in standing.members if m.state == "pending"]
        need = (standing.group.resources.cores or 0.0) * len(pending)
        if pending and not standing.stopping and self.used() + need <= self.cores:
            self._set(key, "running", None)

    def _set(self, key: str, state: str, code: int | None, reason: str = "") -> None:
        standing = self.groups[key]
        members = (
            replace(m, state=state, exit_code=code, node="here", since_s=self.now_s, reason=reason)  # type: ignore[arg-type]
            for m in standing.members
        )
        self.groups[key] = replace(standing, members=tuple(members))


class WorldBackend:
    """The world as a backend; what changes it is a side effect."""

    def __init__(self, world: World) -> None:
        self._world = world

    def launch(self, group: Group) -> None:
        there = self._there().get(group.key)
        if there is not None:
            refuse_other(there.group, group)
            if there.stopping:
                raise InUse(f"group {group.key} is being stopped")
        kept = () if there is None else there.members[: group.count]
        fresh = tuple(Member(i, "pending") for i in range(len(kept), group.count))
        self._world.groups[group.key] = GroupStatus(group, (*kept, *fresh))
        self._guard(group.key)

    def observe(self, key: str) -> GroupStatus | None:
        return self._there().get(key)

    def stop(self, key: str) -> None:
        if (there := self._there().get(key)) is not None:
            self._world.groups[key] = replace(there, stopping=True)
            self._guard(key)

    def scale(self, key: str, count: int) -> None:
        self.launch(replace(self._there()[key].group, count=count))

    def survey(self, tenant: str | None = None) -> ClusterState:
        groups = self._there()
        free = Resources(self._world.cores - self._world.used(), 1 << 40)
        node = Node("here", alive=True, total=Resources(self._world.cores, 1 << 40), free=free)
        return ClusterState((node,), tuple(s for s in groups.values() if tenant in (None, s.group.tenant)))

    def _guard(self, key: str) -> None:
        """As the local backend does: what is wanted is written, then somebody is started who makes it so."""
        self._world.fate.effect()
        self._world.guarded.add(key)
        self._world.fate.effect()

    def _there(self) -> dict[str, GroupStatus]:
        if self._world.away:
            raise ProcessFailed("the cluster does not answer")
        return self._world.groups


class MortalDatabase(Database):
    """A database after whose commits a process may die."""

    def __init__(self, inner: Database, fate: Fate) -> None:
        self._inner, self._fate, self.shown = inner, fate, inner.shown

    def read(self, sql: str, *args: object) -> list[Row]:
        return self._inner.read(sql, *args)

    @contextmanager
    def transaction(self, *, light: bool = False, alone: str = "") -> Iterator[Transaction]:
        with self._inner.transaction(light=light, alone=alone) as transaction:
            yield transaction
        self._fate.effect()

    def revision(self) -> int | None:
        return self._inner.revision()

    def has_table(self, name: str) -> bool:
        return self._inner.has_table(name)

    def close(self) -> None:
        self._inner.close()


@dataclass
class Process:
    """A control plane: from its start to its death."""

    world: World
    database: Database
    decide: Callable[[Snapshot], list[JobDecision]]
    name: str = "one"
    skipped_s: float = 0.0

    def __post_init__(self) -> None:
        self.lease = DatabaseLease(MortalDatabase(self.database, self.world.fate), self.name)
        self.records = JobStore(
            MortalDatabase(self.database, self.world.fate), clock=lambda: self.world.now_s
        )
        self.reconciler: Reconciler | None = None

    def step(self) -> ReconcileResult | None:
        """Beat or wait for the lease, then do a step if this one leads."""
        if not self.lease.step(self.world.now_s + self.skipped_s):
            self.reconciler = None
            return None
        if self.reconciler is None:
            self.reconciler = Reconciler(
                FencedLeaderStore(self.records, lambda: self.lease.epoch),
                WorldBackend(self.world),
                group_of,
                self.decide,
                clock=lambda: self.world.now_s,
            )
        return self.reconciler.step()


def submission(
    name: str, *, work: int = 3, cores: float = 1.0, members: int = 1, **more: object
) -> Submission:
    """A job whose text says how long it works and how it ends."""
    text = f"{work} {more.pop('code', 0)}"
    need = ResourceNeeds(members=members, cores=cores, preemptible=bool(more.pop("preemptible", True)))
    given = {"tenant": "default", "by": "tester", **more}
    return Submission(name=name, kind="train", text=text, need=need, **given)  # type: ignore[arg-type]


def group_of(entry: JobEntry) -> Group:
    return Group(
        entry.group,
        "made.up",
        tuple(entry.text.split()),
        entry.members,
        entry.tenant,
        resources=Resources(entry.need.cores, entry.need.memory_bytes or None),
    )


def in_order(view: Snapshot) -> list[JobDecision]:
    """Admit by priority, then time; preempt the lowest when one above it waits. As plain as can be."""
    free = sum(m.free.cores for m in view.machines)
    free -= sum(_cores(p.job, p.members) for p in view.placed if not p.nodes)
    told = []
    leaving = any(p.leaving for p in view.placed)
    for ask in sorted(view.waiting, key=lambda a: (-a.priority, a.submitted_s, a.key)):
        if _cores(ask, ask.members) <= free and not leaving:
            free -= _cores(ask, ask.members)
            told.append(JobDecision(ask.key, "admit", "there is room", ask.members))
            continue
        lower = sorted(
            (p for p in view.placed if p.job.priority < ask.priority and p.nodes and not p.leaving),
            key=lambda p: (p.job.priority, p.job.key),
        )
        if lower and not leaving:
            leaving = True
            told.append(JobDecision(lower[0].job.key, "preempt", f"for {ask.key}", other=ask.key))
        told.append(JobDecision(ask.key, "hold", "there is no room"))
        leaving = True  # nobody passes
    return told


def _cores(ask: PendingJob, members: int) -> float:
    need: MemberResources = ask.need
    return need.cores * members


def lapse() -> float:
    """How long a candidate must see nothing of the last one."""
    return STALE_S + 1.0
