"""Who may run now.

The queue's order: priority; then, at most one for each tenant that has no more than its share, a job that
has waited for PATIENCE_S, oldest first; then fair share over tenants (fair_share.py), with time within a
tenant.

Each job in that order is admitted if quota and room allow it; all its members or none, or as many as fit if
that is no less than an elastic job's fewest. If not, it gets the room of those who are leaving; or others
are asked to leave for it (preemption.py); or, when it has waited for PATIENCE_S, machines are kept free for
it. What comes later runs on the other machines. So a gang than which nobody has waited longer has room after

    PATIENCE_S, and the time until those that ran on its machines by then have ended

however many smaller jobs come, while machines last: how long jobs run need not be known
(Ground.choose_oldest). Machines are kept for one gang at a time among those with the same labels (with GPUs
and without), so several gangs wait for each other, oldest first.

Jobs of higher priority are not held back by this; a stream of them can keep lower ones waiting for ever,
which is what priority means. Share.max_priority says who may use it.

Pure: the same view gives the same decisions, in whatever order its parts are listed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from windlass.control.scheduler import reasons
from windlass.control.scheduler.capacity import (
    BARE,
    FREE,
    LATER,
    SOON,
    Capacity,
    Columns,
    Floats,
    RequestKind,
    Vector,
    gang_of,
    kind_of,
    vector,
)
from windlass.control.scheduler.fair_share import TenantUsage, accounts_of, priority_of, whole_of
from windlass.control.scheduler.preemption import Preemptor, Yield
from windlass.control.scheduler.snapshot import JobDecision, PendingJob, RunningJob, Snapshot

PATIENCE_S = 600.0


def decide(view: Snapshot) -> list[JobDecision]:
    """Return what is to become of the jobs that wait, in the queue's order, and of those that must change.

    Jobs that go on as they are get no decision.
    """
    round_ = _Round(view)
    round_.settle()
    round_.go_through_queue()
    round_.grow()
    return round_.decisions


class _Round:
    """One pass over the queue; the ground and the accounts say what is left at every moment of it."""

    def __init__(self, view: Snapshot) -> None:
        columns = view.machines if isinstance(view.machines, Columns) else Columns(view.machines)
        self.decisions: list[JobDecision] = []
        self._now_s = view.now_s
        self._min_run_s = view.min_run_s
        self._placed = view.placed
        self._waiting = view.waiting
        self._ground = Capacity(columns)
        self._accounts = accounts_of(view.waiting, self._placed, view.shares, whole_of(columns))
        self._smaller: list[RunningJob] = []
        """Elastic jobs that run with fewer members than they asked for."""
        self._leaving: list[str] = []
        """Who gives back room, and has it still."""
        self._yielders: Preemptor | None = None
        self._kinds: dict[Vector, RequestKind] = {}
        self._kept_for: list[str] = []
        self._pools: set[tuple[object, ...]] = set()
        self._words: dict[tuple[object, ...], str] = {}
        self._held: dict[tuple[object, ...], tuple[int, str]] = {}
        self._changes = 0
        """Of the ground and of the accounts, so far."""
        self._behind = 0
        self._highest_short: int | None = None
        """The highest priority of a job that waits for room."""

    def settle(self) -> None:
        """Begin with those who are admitted: what they hold, leave, and still lack."""
        endless: dict[Vector, list[int]] = defaultdict(list)
        incomplete = []
        for each in self._placed:
            if each.steady:
                continue
            if each.ask.endless:
                endless[vector(each.ask.need)] += self._ground.rows_of(each.nodes)
            if each.leaving or len(each.nodes) > each.members:
                self._count_on(each)
            elif len(each.nodes) < each.members:
                incomplete.append(each)
            elif each.members < each.ask.members:
                self._smaller.append(each)
        for need, rows in endless.items():
            self._ground.hold_without_end(gang_of(rows), need)
        for each in sorted(incomplete, key=lambda each: each.ask.key):
            self._complete(each)

    def _count_on(self, each: RunningJob) -> None:
        """Count on the room of a job that was asked to leave, or of members that it was asked to let go."""
        leaving, need = each.nodes if each.leaving else each.nodes[each.members :], vector(each.ask.need)
        self._ground.clear(gang_of(self._ground.rows_of(leaving)), need, endless=each.ask.endless)
        if each.leaving:
            self._accounts[each.ask.tenant].leave(need, each.members, jobs=1)
        self._leaving.append(each.ask.key)

    def _complete(self, each: RunningJob) -> None:
        """Set room aside for members without a machine; where there is none, the job cannot stay as it is."""
        kind, missing = self._kind(each.ask), each.members - len(each.nodes)
        if self._ground.sum(FREE, kind) >= missing:
            self._take(each.ask, kind, missing)
            return
        if self._now_s - each.since_s < self._min_run_s:
            return
        account, key = self._accounts[each.ask.tenant], each.ask.key
        if len(each.nodes) >= each.ask.fewest:
            members = len(each.nodes)
            self._say(JobDecision(key, "resize", reasons.broken_elastic(members), members))
            account.leave(kind.need, missing, jobs=0)
        elif each.ask.preemptible:
            self._say(JobDecision(key, "preempt", reasons.broken(missing)))
            account.leave(kind.need, each.members, jobs=1)
            self._ground.clear(gang_of(self._ground.rows_of(each.nodes)), kind.need, endless=each.ask.endless)

    def go_through_queue(self) -> None:
        levels: dict[int, dict[str, list[PendingJob]]] = defaultdict(lambda: defaultdict(list))
        for ask in self._waiting:
            levels[priority_of(ask, self._accounts[ask.tenant].share)][ask.tenant].append(ask)
        for priority in sorted(levels, reverse=True):
            queues = levels[priority]
            for queue in queues.values():
                queue.sort(key=lambda ask: (ask.asked_s, ask.key))
            before = len(self.decisions)
            self._changes += 1
            for ask in self._overdue(queues):
                queues[ask.tenant].remove(ask)
                self._consider(ask, priority, overdue=True)
            self._by_share(queues, priority)
            self._behind += sum(decision.what == "hold" for decision in self.decisions[before:])

    def _overdue(self, queues: dict[str, list[PendingJob]]) -> list[PendingJob]:
        """Return who has waited too long: of each tenant not above its share the first that could run."""
        found = []
        for tenant, queue in queues.items():
            account = self._accounts[tenant]
            if account.now <= account.fair:
                found += next(([ask] for ask in queue if self._could_run(ask, account)), [])
        late = (ask for ask in found if self._now_s - ask.asked_s >= PATIENCE_S)
        return sorted(late, key=lambda ask: (ask.asked_s, ask.key))

    def _could_run(self, ask: PendingJob, account: TenantUsage) -> bool:
        kind = self._kind(ask)
        return min(account.most_of(kind.need), self._ground.columns.most(kind)) >= ask.fewest

    def _by_share(self, queues: dict[str, list[PendingJob]], priority: int) -> None:
        """Consider the first job of whoever stands lowest, again and again."""
        heap = [(self._accounts[tenant].standing, tenant, 0) for tenant, queue in queues.items() if queue]
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
                heapq.heappush(heap, (self._accounts[tenant].standing, tenant, at))

    def _consider(self, ask: PendingJob, priority: int, *, overdue: bool) -> bool:
        """Decide about one job; True when it got room, or was promised some.

        Nothing changes while jobs are held: an equal job of the tenant is held for the same reason.
        """
        need = ask.need
        room = (need.cores, need.memory_bytes, need.gpus)
        shape = (ask.tenant, room, ask.fewest, ask.members, *ask.node_selector.items())
        if not overdue and (known := self._held.get(shape)) and known[0] == self._changes:
            return self._hold(ask, known[1])
        got = self._find_room(ask, priority, overdue=overdue)
        if not got:
            self._held[shape] = self._changes, self.decisions[-1].reason
        return got

    def _find_room(self, ask: PendingJob, priority: int, *, overdue: bool) -> bool:
        kind, account, ground = self._kind(ask), self._accounts[ask.tenant], self._ground
        if ground.columns.most(kind) < ask.fewest:
            return self._hold(ask, self._too_large(ask, kind))
        if not account.may_begin() or account.room_for(kind.need) < ask.fewest:
            return self._want_quota(ask, kind, account)
        if account.blocked_by is not None:
            return self._hold(ask, reasons.behind_own(account.blocked_by))
        most = int(min(ask.members, account.room_for(kind.need)))
        if (fits := ground.sum(FREE, kind)) >= ask.fewest:
            members = min(most, fits)
            nodes = self._take(ask, kind, members)
            account.hold(kind.need, members)
            self._say(JobDecision(ask.key, "admit", reasons.admitted(ask, members), members, nodes=nodes))
            return True
        if ground.sum(SOON, kind) >= ask.fewest:
            return self._promise(ask, kind, reasons.makes_room(self._leaving))
        if yields := self._yielders_().find(ground, ask, kind):
            for each in yields:
                self._let_go(each, ask)
            return self._promise(ask, kind, reasons.makes_room(each.placed.ask.key for each in yields))
        self._highest_short = max(priority, self._highest_short or priority)
        pool = (kind.labels, kind.need[2] > 0)
        if overdue and pool not in self._pools and ground.sum(LATER, kind) >= ask.fewest:
            self._pools.add(pool)
            return self._keep(ask, kind)
        return self._hold(ask, self._no_room(ask, kind))

    def _take(self, ask: PendingJob, kind: RequestKind, members: int) -> tuple[str, ...]:
        gang = self._ground.choose(FREE, kind, members, ask.placement)
        self._ground.take(gang, kind)
        return self._ground.nodes_of(gang)

    def _want_quota(self, ask: PendingJob, kind: RequestKind, account: TenantUsage) -> bool:
        """Hold a job that the quota forbids, and let the tenant's own lower jobs go if that helps."""
        if account.most_of(kind.need) < ask.fewest or account.share.max_jobs == 0:
            return self._hold(ask, reasons.beyond_quota(ask, account))
        leaving = self._leaves_quota(ask, kind, account)
        own = self._yielders_().own(ask)
        gone: list[str] = []
        while not leaving and own:
            each = own.pop(0)
            gone.append(each.ask.key)
            self._let_go(Yield(each, each.members), ask)
            leaving = self._leaves_quota(ask, kind, account)
        if leaving:
            account.hold(kind.need, ask.fewest)
            self._changes += 1
            return self._hold(ask, reasons.makes_room(gone or self._leaving_of(ask.tenant)))
        if self._now_s - ask.asked_s >= PATIENCE_S and account.blocked_by is None:
            account.blocked_by = ask.key
            self._changes += 1
        return self._hold(ask, self._quota_used(ask, account))

    def _leaves_quota(self, ask: PendingJob, kind: RequestKind, account: TenantUsage) -> bool:
        room = account.room_for(kind.need, without_leaving=True)
        return account.may_begin(without_leaving=True) and room >= ask.fewest

    def _promise(self, ask: PendingJob, kind: RequestKind, reason: str) -> bool:
        """Let a job have room that somebody is about to leave."""
        gang = self._ground.choose(SOON, kind, ask.fewest, ask.placement)
        self._ground.promise(gang, kind)
        return self._first_in_line(ask, kind, reason)

    def _keep(self, ask: PendingJob, kind: RequestKind) -> bool:
        """Keep machines free for a job until it fits."""
        fits = self._ground.sum(BARE, kind)
        self._ground.keep(self._ground.choose_oldest(kind, ask.fewest, self._newest_s()))
        return self._first_in_line(ask, kind, reasons.next_in_line(ask, fits))

    def _first_in_line(self, ask: PendingJob, kind: RequestKind, reason: str) -> bool:
        self._accounts[ask.tenant].hold(kind.need, ask.fewest)
        self._kept_for.append(ask.key)
        self._changes += 1
        self._hold(ask, reason)
        return True

    def _newest_s(self) -> Floats:
        """Return when the last one began in each machine."""
        newest_s = np.full(len(self._ground.columns), -np.inf)
        for each in self._placed:
            rows = self._ground.rows_of(each.nodes)
            newest_s[rows] = np.maximum(newest_s[rows], each.since_s)
        return newest_s

    def _let_go(self, each: Yield, ask: PendingJob) -> None:
        placed, need = each.placed, vector(each.placed.ask.need)
        nodes = placed.nodes[len(placed.nodes) - each.members :]
        gang = gang_of(self._ground.rows_of(nodes))
        self._ground.clear(gang, need, endless=placed.ask.endless)
        self._accounts[placed.ask.tenant].leave(need, each.members, jobs=int(each.whole))
        self._yielders_().take(placed)
        key, left = placed.ask.key, placed.members - each.members
        if left:
            self._say(JobDecision(key, "resize", reasons.shrunk(left, ask.key), left, ask.key))
        elif each.by_share:
            reason = reasons.preempted_by_share(ask.key, placed.ask.tenant)
            self._say(JobDecision(key, "preempt", reason, other=ask.key))
        else:
            self._say(JobDecision(key, "preempt", reasons.preempted_by_priority(ask.key), other=ask.key))

    def grow(self) -> None:
        """Let elastic jobs have what nobody waits for: by priority, then by standing."""
        if not self._smaller:
            return
        changed = {decision.key for decision in self.decisions if decision.what != "hold"}
        elastic = [
            each
            for each in self._smaller
            if each.ask.key not in changed and self._now_s - each.since_s >= self._min_run_s
        ]
        for each in sorted(elastic, key=self._growth_order):
            kind, account = self._kind(each.ask), self._accounts[each.ask.tenant]
            if self._highest_short is not None and self._highest_short >= self._priority(each):
                continue
            further = each.ask.members - each.members
            further = int(min(further, account.room_for(kind.need), self._ground.sum(FREE, kind)))
            if further > 0:
                nodes = self._take(each.ask, kind, further)
                account.hold(kind.need, further)
                members = each.members + further
                self._say(JobDecision(each.ask.key, "resize", reasons.grown(members), members, nodes=nodes))

    def _growth_order(self, each: RunningJob) -> tuple[float, float, float, str]:
        account = self._accounts[each.ask.tenant]
        return -self._priority(each), account.standing, each.since_s, each.ask.key

    def _priority(self, each: RunningJob) -> int:
        return priority_of(each.ask, self._accounts[each.ask.tenant].share)

    def _kind(self, ask: PendingJob) -> RequestKind:
        if ask.node_selector:
            return kind_of(ask.need, ask.node_selector)
        need = vector(ask.need)
        known = self._kinds.get(need)
        if known is None:
            known = self._kinds[need] = RequestKind(need)
        return known

    def _yielders_(self) -> Preemptor:
        if self._yielders is None:
            self._yielders = Preemptor(self._placed, self._accounts, self._now_s, self._min_run_s)
        return self._yielders

    def _too_large(self, ask: PendingJob, kind: RequestKind) -> str:
        machines = int(self._ground.columns.mask(kind.labels).sum())
        return reasons.too_large(ask, self._ground.columns.most(kind), machines)

    def _no_room(self, ask: PendingJob, kind: RequestKind) -> str:
        """Say what is missing; many wait for the same, so it is said once for all of them."""
        bare = self._ground.sum(BARE, kind)
        known = (kind, ask.fewest, bare, self._behind)
        if known not in self._words:
            kept = bare >= ask.fewest and self._kept_for
            words = reasons.room_kept(self._kept_for) if kept else reasons.no_room(ask, bare, self._behind)
            self._words[known] = words
        return self._words[known]

    def _quota_used(self, ask: PendingJob, account: TenantUsage) -> str:
        known = ("quota", ask.tenant, account.may_begin())
        if known not in self._words:
            self._words[known] = reasons.quota_used(ask, account, self._holders(ask.tenant))
        return self._words[known]

    def _holders(self, tenant: str) -> Iterable[str]:
        placed = [each.ask.key for each in self._placed if each.ask.tenant == tenant]
        return placed + [
            d.key for d in self.decisions if d.what == "admit" and d.key.startswith(f"{tenant}/")
        ]

    def _leaving_of(self, tenant: str) -> list[str]:
        return [each.ask.key for each in self._placed if each.leaving and each.ask.tenant == tenant]

    def _hold(self, ask: PendingJob, reason: str) -> bool:
        self.decisions.append(JobDecision(ask.key, "hold", reason))
        return False

    def _say(self, decision: JobDecision) -> None:
        self.decisions.append(decision)
        self._changes += 1
