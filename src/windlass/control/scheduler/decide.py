"""The scheduling cycle: which jobs start, shrink, grow, are preempted or keep waiting.

Six phases, as in kueue: heads, snapshot, nominate, order, admit, requeue (`_Cycle`). Afterwards elastic jobs
grow into what is left.

The queue's order is: priority; then, at most one for each tenant that does not exceed its fair share, jobs
that have waited for PATIENCE_S, oldest first; then fair share over tenants (`fair_share`), oldest first
within a tenant.

Each job in that order is admitted if quota and capacity allow it: all its members or none, or for an elastic
job as many as fit, but at least its minimum. Otherwise the job is promised the capacity of draining jobs; or
running jobs are preempted for it (`preemption`); or, if it has waited for PATIENCE_S, nodes are reserved for
it. Later jobs run on the other nodes. So the gang that has waited longest starts after

    PATIENCE_S, plus the time until the jobs that ran on its nodes by then have ended

however many smaller jobs arrive, as long as the nodes stay alive. How long jobs run need not be known
(Capacity.choose_oldest). Nodes with the same labels (with and without GPUs) are reserved for a single gang at
a time, so several gangs take turns, oldest first.

Jobs of higher priority are not held back by this; a stream of them can starve lower ones, which is what
priority means. TenantQuota.max_priority limits who may use it.

Pure: the same snapshot gives the same decisions, in whatever order its parts are listed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from windlass.control.scheduler import reasons
from windlass.control.scheduler.capacity import (
    AFTER_DRAIN,
    AVAILABLE,
    EVENTUAL,
    UNUSED,
    Capacity,
    Columns,
    Floats,
    RequestKind,
    Vector,
    gang_of,
    kind_of,
    vector,
)
from windlass.control.scheduler.fair_share import TenantUsage, priority_of, total_resources, usage_by_tenant
from windlass.control.scheduler.preemption import PreemptionTarget, Preemptor
from windlass.control.scheduler.snapshot import JobDecision, PendingJob, RunningJob, Snapshot

PATIENCE_S = 600.0


def decide(snapshot: Snapshot) -> list[JobDecision]:
    """Return the decisions about pending jobs, in the queue's order, and about running jobs that must change.

    Running jobs that stay as they are get no decision.
    """
    cycle = _Cycle(snapshot)
    heads = cycle.heads()
    cycle.snapshot()
    for priority in sorted(heads, reverse=True):
        cycle.schedule(priority, heads[priority])
    cycle.grow()
    return cycle.decisions


class _Cycle:
    """One scheduling cycle; the capacity and the tenants' usage are up to date after every decision.

    1. heads: the pending jobs by priority and tenant, oldest first.
    2. snapshot: charge what running jobs hold, release and lack.
    3. nominate: jobs that have waited too long go first within their priority.
    4. order: the other jobs by fair share over tenants.
    5. admit: start a job, promise it draining capacity, preempt for it, or reserve nodes for it.
    6. requeue: a job that was not admitted waits, with the reason.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        machines = snapshot.machines
        columns = machines if isinstance(machines, Columns) else Columns(machines)
        self.decisions: list[JobDecision] = []
        self._now_s = snapshot.now_s
        self._min_run_s = snapshot.min_run_s
        self._placed = snapshot.placed
        self._waiting = snapshot.waiting
        self._capacity = Capacity(columns)
        self._usage = usage_by_tenant(
            snapshot.waiting, self._placed, snapshot.shares, total_resources(columns)
        )
        self._smaller: list[RunningJob] = []
        """Elastic jobs that run with fewer members than they requested."""
        self._leaving: list[str] = []
        """Jobs that are draining: they release capacity and still hold it."""
        self._preemptor: Preemptor | None = None
        self._kinds: dict[Vector, RequestKind] = {}
        self._reserved_for: list[str] = []
        self._pools: set[tuple[object, ...]] = set()
        self._reasons: dict[tuple[object, ...], str] = {}
        self._requeued: dict[tuple[object, ...], tuple[int, str]] = {}
        self._changes = 0
        """How often capacity or usage changed so far."""
        self._behind = 0
        self._highest_short: int | None = None
        """The highest priority of a job that waits for capacity."""

    # 1. heads

    def heads(self) -> dict[int, dict[str, list[PendingJob]]]:
        """Return the pending jobs by priority and tenant, oldest first."""
        levels: dict[int, dict[str, list[PendingJob]]] = defaultdict(lambda: defaultdict(list))
        for job in self._waiting:
            levels[priority_of(job, self._usage[job.tenant].share)][job.tenant].append(job)
        for queues in levels.values():
            for queue in queues.values():
                queue.sort(key=lambda job: (job.submitted_s, job.key))
        return levels

    # 2. snapshot

    def snapshot(self) -> None:
        """Charge the running jobs: what they hold, release, and still lack."""
        endless: dict[Vector, list[int]] = defaultdict(list)
        incomplete = []
        for each in self._placed:
            if each.steady:
                continue
            if each.job.endless:
                endless[vector(each.job.need)] += self._capacity.rows_of(each.nodes)
            if each.leaving or len(each.nodes) > each.members:
                self._drain(each)
            elif len(each.nodes) < each.members:
                incomplete.append(each)
            elif each.members < each.job.members:
                self._smaller.append(each)
        for need, rows in endless.items():
            self._capacity.hold_without_end(gang_of(rows), need)
        for each in sorted(incomplete, key=lambda each: each.job.key):
            self._complete_gang(each)

    def _drain(self, each: RunningJob) -> None:
        """Count on the capacity of a draining job, or of the members that a job was told to give up."""
        leaving, need = each.nodes if each.leaving else each.nodes[each.members :], vector(each.job.need)
        self._capacity.clear(gang_of(self._capacity.rows_of(leaving)), need, endless=each.job.endless)
        if each.leaving:
            self._usage[each.job.tenant].leave(need, each.members, jobs=1)
        self._leaving.append(each.job.key)

    def _complete_gang(self, each: RunningJob) -> None:
        """Set capacity aside for members without a node; without capacity, shrink or preempt the job."""
        kind, missing = self._kind(each.job), each.members - len(each.nodes)
        if self._capacity.sum(AVAILABLE, kind) >= missing:
            self._place(each.job, kind, missing)
            return
        if self._now_s - each.since_s < self._min_run_s:
            return
        usage, key = self._usage[each.job.tenant], each.job.key
        if len(each.nodes) >= each.job.fewest:
            members = len(each.nodes)
            self._decide(JobDecision(key, "resize", reasons.broken_elastic(members), members))
            usage.leave(kind.need, missing, jobs=0)
        elif each.job.preemptible:
            self._decide(JobDecision(key, "preempt", reasons.broken(missing)))
            usage.leave(kind.need, each.members, jobs=1)
            self._capacity.clear(
                gang_of(self._capacity.rows_of(each.nodes)), kind.need, endless=each.job.endless
            )

    def schedule(self, priority: int, queues: dict[str, list[PendingJob]]) -> None:
        """Run phases 3 to 6 for the jobs of one priority."""
        before = len(self.decisions)
        self._changes += 1
        for job in self._nominate(queues):
            queues[job.tenant].remove(job)
            self._consider(job, priority, overdue=True)
        self._order(queues, priority)
        self._behind += sum(decision.what == "hold" for decision in self.decisions[before:])

    # 3. nominate

    def _nominate(self, queues: dict[str, list[PendingJob]]) -> list[PendingJob]:
        """Return overdue jobs: of each tenant not above its fair share, the first job that could run."""
        found = []
        for tenant, queue in queues.items():
            usage = self._usage[tenant]
            if usage.now <= usage.fair:
                found += next(([job] for job in queue if self._could_run(job, usage)), [])
        late = (job for job in found if self._now_s - job.submitted_s >= PATIENCE_S)
        return sorted(late, key=lambda job: (job.submitted_s, job.key))

    def _could_run(self, job: PendingJob, usage: TenantUsage) -> bool:
        kind = self._kind(job)
        return min(usage.max_members(kind.need), self._capacity.columns.max_members(kind)) >= job.fewest

    # 4. order

    def _order(self, queues: dict[str, list[PendingJob]], priority: int) -> None:
        """Consider the first job of the tenant with the lowest weighted usage, until no job is left."""
        heap = [(self._usage[tenant].weighted_usage, tenant, 0) for tenant, queue in queues.items() if queue]
        heapq.heapify(heap)
        while heap:
            _, tenant, at = heapq.heappop(heap)
            queue = queues[tenant]
            while at < len(queue):
                began = self._consider(queue[at], priority, overdue=False)
                at += 1
                if began:
                    break
            if at < len(queue):
                heapq.heappush(heap, (self._usage[tenant].weighted_usage, tenant, at))

    def _consider(self, job: PendingJob, priority: int, *, overdue: bool) -> bool:
        """Decide about one job; True when it was admitted, or was promised capacity.

        Nothing changes while jobs are requeued: an equal job of the tenant is requeued for the same reason.
        """
        need = job.need
        amounts = (need.cores, need.memory_bytes, need.gpus)
        shape = (job.tenant, amounts, job.fewest, job.members, *job.node_selector.items())
        if not overdue and (known := self._requeued.get(shape)) and known[0] == self._changes:
            return self._requeue(job, known[1])
        got = self._admit(job, priority, overdue=overdue)
        if not got:
            self._requeued[shape] = self._changes, self.decisions[-1].reason
        return got

    # 5. admit

    def _admit(self, job: PendingJob, priority: int, *, overdue: bool) -> bool:
        kind, usage, capacity = self._kind(job), self._usage[job.tenant], self._capacity
        if capacity.columns.max_members(kind) < job.fewest:
            return self._requeue(job, self._too_large(job, kind))
        if not usage.may_begin() or usage.room_for(kind.need) < job.fewest:
            return self._wait_for_quota(job, kind, usage)
        if usage.blocked_by is not None:
            return self._requeue(job, reasons.behind_own(usage.blocked_by))
        limit = int(min(job.members, usage.room_for(kind.need)))
        if (fits := capacity.sum(AVAILABLE, kind)) >= job.fewest:
            members = min(limit, fits)
            nodes = self._place(job, kind, members)
            usage.hold(kind.need, members)
            self._decide(JobDecision(job.key, "admit", reasons.admitted(job, members), members, nodes=nodes))
            return True
        if capacity.sum(AFTER_DRAIN, kind) >= job.fewest:
            return self._promise(job, kind, reasons.makes_room(self._leaving))
        if targets := self._get_preemptor().find(capacity, job, kind):
            for each in targets:
                self._preempt(each, job)
            return self._promise(job, kind, reasons.makes_room(each.placed.job.key for each in targets))
        self._highest_short = max(priority, self._highest_short or priority)
        pool = (kind.labels, kind.need[2] > 0)
        if overdue and pool not in self._pools and capacity.sum(EVENTUAL, kind) >= job.fewest:
            self._pools.add(pool)
            return self._reserve(job, kind)
        return self._requeue(job, self._no_room(job, kind))

    def _place(self, job: PendingJob, kind: RequestKind, members: int) -> tuple[str, ...]:
        gang = self._capacity.choose(AVAILABLE, kind, members, job.placement)
        self._capacity.take(gang, kind)
        return self._capacity.nodes_of(gang)

    def _wait_for_quota(self, job: PendingJob, kind: RequestKind, usage: TenantUsage) -> bool:
        """Requeue a job beyond the quota; preempt the tenant's own lower-priority jobs if that helps."""
        if usage.max_members(kind.need) < job.fewest or usage.share.max_jobs == 0:
            return self._requeue(job, reasons.beyond_quota(job, usage))
        leaving = self._fits_after_drain(job, kind, usage)
        own = self._get_preemptor().own(job)
        gone: list[str] = []
        while not leaving and own:
            each = own.pop(0)
            gone.append(each.job.key)
            self._preempt(PreemptionTarget(each, each.members), job)
            leaving = self._fits_after_drain(job, kind, usage)
        if leaving:
            usage.hold(kind.need, job.fewest)
            self._changes += 1
            return self._requeue(job, reasons.makes_room(gone or self._leaving_of(job.tenant)))
        if self._now_s - job.submitted_s >= PATIENCE_S and usage.blocked_by is None:
            usage.blocked_by = job.key
            self._changes += 1
        return self._requeue(job, self._quota_used(job, usage))

    def _fits_after_drain(self, job: PendingJob, kind: RequestKind, usage: TenantUsage) -> bool:
        room = usage.room_for(kind.need, without_leaving=True)
        return usage.may_begin(without_leaving=True) and room >= job.fewest

    def _promise(self, job: PendingJob, kind: RequestKind, reason: str) -> bool:
        """Promise a job capacity that is draining."""
        gang = self._capacity.choose(AFTER_DRAIN, kind, job.fewest, job.placement)
        self._capacity.promise(gang, kind)
        return self._hold_place(job, kind, reason)

    def _reserve(self, job: PendingJob, kind: RequestKind) -> bool:
        """Reserve nodes for a job until it fits."""
        fits = self._capacity.sum(UNUSED, kind)
        self._capacity.keep(self._capacity.choose_oldest(kind, job.fewest, self._newest_s()))
        return self._hold_place(job, kind, reasons.next_in_line(job, fits))

    def _hold_place(self, job: PendingJob, kind: RequestKind, reason: str) -> bool:
        self._usage[job.tenant].hold(kind.need, job.fewest)
        self._reserved_for.append(job.key)
        self._changes += 1
        self._requeue(job, reason)
        return True

    def _newest_s(self) -> Floats:
        """Return when the newest job started on each node."""
        newest_s = np.full(len(self._capacity.columns), -np.inf)
        for each in self._placed:
            rows = self._capacity.rows_of(each.nodes)
            newest_s[rows] = np.maximum(newest_s[rows], each.since_s)
        return newest_s

    def _preempt(self, each: PreemptionTarget, job: PendingJob) -> None:
        placed, need = each.placed, vector(each.placed.job.need)
        nodes = placed.nodes[len(placed.nodes) - each.members :]
        gang = gang_of(self._capacity.rows_of(nodes))
        self._capacity.clear(gang, need, endless=placed.job.endless)
        self._usage[placed.job.tenant].leave(need, each.members, jobs=int(each.whole))
        self._get_preemptor().take(placed)
        key, left = placed.job.key, placed.members - each.members
        if left:
            self._decide(JobDecision(key, "resize", reasons.shrunk(left, job.key), left, job.key))
        elif each.by_share:
            reason = reasons.preempted_by_share(job.key, placed.job.tenant)
            self._decide(JobDecision(key, "preempt", reason, other=job.key))
        else:
            self._decide(JobDecision(key, "preempt", reasons.preempted_by_priority(job.key), other=job.key))

    def grow(self) -> None:
        """Grow elastic jobs into capacity that no job waits for: by priority, then by weighted usage."""
        if not self._smaller:
            return
        changed = {decision.key for decision in self.decisions if decision.what != "hold"}
        elastic = [
            each
            for each in self._smaller
            if each.job.key not in changed and self._now_s - each.since_s >= self._min_run_s
        ]
        for each in sorted(elastic, key=self._growth_order):
            kind, usage = self._kind(each.job), self._usage[each.job.tenant]
            if self._highest_short is not None and self._highest_short >= self._priority(each):
                continue
            further = each.job.members - each.members
            further = int(min(further, usage.room_for(kind.need), self._capacity.sum(AVAILABLE, kind)))
            if further > 0:
                nodes = self._place(each.job, kind, further)
                usage.hold(kind.need, further)
                members = each.members + further
                self._decide(
                    JobDecision(each.job.key, "resize", reasons.grown(members), members, nodes=nodes)
                )

    def _growth_order(self, each: RunningJob) -> tuple[float, float, float, str]:
        usage = self._usage[each.job.tenant]
        return -self._priority(each), usage.weighted_usage, each.since_s, each.job.key

    def _priority(self, each: RunningJob) -> int:
        return priority_of(each.job, self._usage[each.job.tenant].share)

    def _kind(self, job: PendingJob) -> RequestKind:
        if job.node_selector:
            return kind_of(job.need, job.node_selector)
        need = vector(job.need)
        known = self._kinds.get(need)
        if known is None:
            known = self._kinds[need] = RequestKind(need)
        return known

    def _get_preemptor(self) -> Preemptor:
        if self._preemptor is None:
            self._preemptor = Preemptor(self._placed, self._usage, self._now_s, self._min_run_s)
        return self._preemptor

    def _too_large(self, job: PendingJob, kind: RequestKind) -> str:
        machines = int(self._capacity.columns.mask(kind.labels).sum())
        return reasons.too_large(job, self._capacity.columns.max_members(kind), machines)

    def _no_room(self, job: PendingJob, kind: RequestKind) -> str:
        """Return the reason for missing capacity; cached, because many jobs wait for the same."""
        unused = self._capacity.sum(UNUSED, kind)
        known = (kind, job.fewest, unused, self._behind)
        if known not in self._reasons:
            reserved = unused >= job.fewest and self._reserved_for
            self._reasons[known] = (
                reasons.room_kept(self._reserved_for)
                if reserved
                else reasons.no_room(job, unused, self._behind)
            )
        return self._reasons[known]

    def _quota_used(self, job: PendingJob, usage: TenantUsage) -> str:
        known = ("quota", job.tenant, usage.may_begin())
        if known not in self._reasons:
            self._reasons[known] = reasons.quota_used(job, usage, self._holders(job.tenant))
        return self._reasons[known]

    def _holders(self, tenant: str) -> Iterable[str]:
        placed = [each.job.key for each in self._placed if each.job.tenant == tenant]
        return placed + [
            d.key for d in self.decisions if d.what == "admit" and d.key.startswith(f"{tenant}/")
        ]

    def _leaving_of(self, tenant: str) -> list[str]:
        return [each.job.key for each in self._placed if each.leaving and each.job.tenant == tenant]

    # 6. requeue

    def _requeue(self, job: PendingJob, reason: str) -> bool:
        """Let a job wait; the reason is shown to its owner."""
        self.decisions.append(JobDecision(job.key, "hold", reason))
        return False

    def _decide(self, decision: JobDecision) -> None:
        self.decisions.append(decision)
        self._changes += 1
