"""Preemption: the smallest set of running jobs, with the least work lost, that makes way for a job.

Members above the minimum of elastic jobs go first: no work is lost with them. Then whole jobs of lower
priority, or of a tenant above its fair share, in this order: lowest priority, furthest above its share, least
work since the last save, started last.

Two jobs never preempt each other in turns. By priority, one is always above the other. By share, a tenant
takes only up to its own share, and only what another tenant has above its share; afterwards neither may take
it back. Both hold while the set of tenants stays the same; against changes of it, no job is preempted before
it has run for Snapshot.min_run_s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from windlass.control.scheduler.capacity import (
    AFTER_DRAIN,
    EVENTUAL,
    SLACK,
    Capacity,
    Floats,
    Ints,
    RequestKind,
    count,
    vector,
)
from windlass.control.scheduler.fair_share import TenantUsage, priority_of
from windlass.control.scheduler.snapshot import MemberResources, PendingJob, RunningJob

FAR_BELOW = 0.8
"""A tenant may preempt jobs of its own priority while it has less than this part of its fair share."""


@dataclass(frozen=True, slots=True)
class PreemptionTarget:
    """The last `members` of a running job are to stop; all of them when the job is preempted."""

    placed: RunningJob
    members: int
    by_share: bool = False

    @property
    def whole(self) -> bool:
        return self.members == self.placed.members


class Preemptor:
    """Finds the running jobs to preempt in one scheduling cycle."""

    def __init__(
        self,
        placed: Sequence[RunningJob],
        usage: Mapping[str, TenantUsage],
        now_s: float,
        min_run_s: float,
    ) -> None:
        self._usage, self._now_s = usage, now_s
        self._able = [
            each
            for each in placed
            if not each.leaving and now_s - each.since_s >= min_run_s and len(each.nodes) == each.members
        ]
        self._over = {tenant: used.now / used.fair for tenant, used in usage.items()}
        self._failed: dict[tuple[RequestKind, int, str], int] = {}
        """The smallest gang for which the search failed, by kind, priority and tenant."""
        self._parts: dict[MemberResources, float] = {}
        self._bound: UpperBound | None = None
        self._tables: dict[bool, CandidateTable] = {}
        """Members above the minimum of elastic jobs (False), and whole jobs without these (True)."""
        self._candidates: dict[tuple[int, str | None], Candidates] = {}
        self._gone: set[str] = set()

    @cached_property
    def _ranked(self) -> list[RunningJob]:
        return self._in_order(self._able)

    @cached_property
    def _elastic(self) -> list[RunningJob]:
        return self._in_order(each for each in self._able if each.members > each.job.fewest)

    def _in_order(self, able: Iterable[RunningJob]) -> list[RunningJob]:
        return [ranked[-1] for ranked in sorted(map(self._cost, able), key=itemgetter(0, 1, 2, 3, 4))]

    def find(self, capacity: Capacity, job: PendingJob, kind: RequestKind) -> list[PreemptionTarget]:
        """Return what to preempt so that the minimum of the job fits; empty if that is impossible."""
        priority = priority_of(job, self._usage[job.tenant].share)
        by_share = self._is_far_below(job, kind)
        case = (kind, priority, job.tenant if by_share else "")
        if job.fewest >= self._failed.get(case, job.fewest + 1):
            return []
        found = self._search(capacity, job, kind, priority, by_share=by_share)
        if not found:
            self._failed[case] = job.fewest
        for each in found:
            self.take(each.placed)
        return [replace(each, by_share=self._priority(each.placed) == priority) for each in found]

    def _search(
        self, capacity: Capacity, job: PendingJob, kind: RequestKind, priority: int, *, by_share: bool
    ) -> list[PreemptionTarget]:
        """Search the spare members of elastic jobs; then all candidates, if all of them would suffice."""
        if found := search(capacity, job.fewest, kind, self._spare_members(capacity, priority)):
            return found
        bound = self._upper_bound(capacity)
        if bound.max_members(capacity, kind, priority, job.tenant if by_share else "") < job.fewest:
            return []
        candidates = self._candidates_for(capacity, job, priority, by_share=by_share)
        return search(capacity, job.fewest, kind, candidates)

    def _spare_members(self, capacity: Capacity, priority: int) -> Candidates:
        case = (priority, None)
        candidates = self._candidates.get(case)
        if candidates is None:
            spare = self._table(capacity, whole=False)
            candidates = self._candidates[case] = Candidates(
                [(spare, range(bisect_right(spare.priorities, priority)))]
            )
        return candidates

    def _upper_bound(self, capacity: Capacity) -> UpperBound:
        if self._bound is None:
            self._bound = UpperBound(capacity, self._able, self._priority, self._over)
        return self._bound

    def _candidates_for(
        self, capacity: Capacity, job: PendingJob, priority: int, *, by_share: bool
    ) -> Candidates:
        """Return the jobs that may be preempted; cached until one of them is chosen."""
        case = (priority, job.tenant if by_share else "")
        candidates = self._candidates.get(case)
        if candidates is None:
            spare, whole = self._table(capacity, whole=False), self._table(capacity, whole=True)
            parts: list[tuple[CandidateTable, Sequence[int]]] = [
                (spare, range(bisect_right(spare.priorities, priority))),
                (whole, range(bisect_left(whole.priorities, priority))),
            ]
            if by_share:
                parts.append((whole, self._above(job, priority, whole)))
            candidates = self._candidates[case] = Candidates(parts)
        return candidates

    def _table(self, capacity: Capacity, *, whole: bool) -> CandidateTable:
        """Return a table of the candidates: spare members, or the rest of each job."""
        known = self._tables.get(whole)
        if known is None:
            spare = {each.job.key: each.members - each.job.fewest for each in self._elastic}
            if whole:
                units = [
                    PreemptionTarget(each, each.members) for each in self._ranked if each.job.preemptible
                ]
            else:
                units = [PreemptionTarget(each, spare[each.job.key]) for each in self._elastic]
            priorities = [self._priority(each.placed) for each in units]
            known = self._tables[whole] = CandidateTable(
                capacity, units, priorities, spared=spare if whole else {}
            )
            for key in self._gone:
                known.remove(key)
        return known

    def own(self, job: PendingJob) -> list[RunningJob]:
        """Return the tenant's own jobs of lower priority, in the order of preemption."""
        return [
            each
            for each in self._ranked
            if each.job.preemptible
            and each.job.tenant == job.tenant
            and each.job.priority < job.priority
            and each.job.key not in self._gone
        ]

    def take(self, placed: RunningJob) -> None:
        """Drop a job from the candidates: it is already being preempted."""
        self._gone.add(placed.job.key)
        for table in self._tables.values():
            table.remove(placed.job.key)
        self._candidates.clear()

    def _is_far_below(self, job: PendingJob, kind: RequestKind) -> bool:
        usage = self._usage[job.tenant]
        after = usage.now + usage.part(kind.need, job.fewest)
        return usage.now < FAR_BELOW * usage.fair and after <= usage.fair

    def _above(self, job: PendingJob, priority: int, whole: CandidateTable) -> list[int]:
        """Return jobs of the same priority without which their tenants still have their fair share."""
        first, last = bisect_left(whole.priorities, priority), bisect_right(whole.priorities, priority)
        given: dict[str, float] = {}
        found = []
        for number in range(first, last):
            each = whole.units[number].placed
            tenant = each.job.tenant
            usage = self._usage[tenant]
            if tenant == job.tenant or self._over[tenant] <= 1.0 or each.job.key in self._gone:
                continue
            gives = given.get(tenant, 0.0) + usage.part(vector(each.job.need), each.members)
            if usage.now - gives >= usage.fair:
                given[tenant] = gives
                found.append(number)
        return found

    def _priority(self, each: RunningJob) -> int:
        return priority_of(each.job, self._usage[each.job.tenant].share)

    def _cost(self, each: RunningJob) -> tuple[float, float, float, float, str, RunningJob]:
        """Return the sort key of a job, cheapest to preempt first, and the job."""
        job, since_s = each.job, each.since_s
        saved_s = since_s if each.saved_s is None else max(each.saved_s, since_s)
        unsaved = (self._now_s - saved_s) * each.members * self._part(job.need)
        return self._priority(each), -self._over[job.tenant], unsaved, -since_s, job.key, each

    def _part(self, need: MemberResources) -> float:
        """Return the dominant share of a member; cached by kind."""
        part = self._parts.get(need)
        if part is None:
            usage = next(iter(self._usage.values()))
            part = self._parts[need] = usage.part(vector(need), 1)
        return part


class UpperBound:
    """Upper bound on what preemption can free.

    Never less than what the candidates would free. Cheap, because jobs are not sorted; used to reject
    hopeless searches early.
    """

    def __init__(
        self,
        capacity: Capacity,
        able: Sequence[RunningJob],
        priority_of: Callable[[RunningJob], int],
        over: Mapping[str, float],
    ) -> None:
        jobs = [each.job for each in able]
        rows = [capacity.columns.rows_at(each.nodes) for each in able]
        lengths = np.array([len(each) for each in rows], dtype=np.int64)
        row = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
        needs = np.array([job.need.vector for job in jobs]).reshape(-1, 3)
        number = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._row = np.maximum(row, 0)
        self._need = np.repeat(needs, lengths, axis=0) * (row >= 0)[:, None]
        self._endless = np.repeat(np.array([job.endless for job in jobs], dtype=bool), lengths)
        self._priority = np.repeat(np.array([priority_of(each) for each in able]), lengths)
        self._preemptible = np.repeat(np.array([job.preemptible for job in jobs], dtype=bool), lengths)
        self._spare = number >= np.repeat(np.array([job.fewest for job in jobs], dtype=np.int64), lengths)
        names = {tenant: at for at, tenant in enumerate(over)}
        self._above = np.array([part > 1.0 for part in over.values()], dtype=bool)
        self._names = names
        self._tenant = np.repeat(np.array([names[job.tenant] for job in jobs], dtype=np.int64), lengths)
        self._freed: dict[tuple[int, str], tuple[Floats, Floats]] = {}

    def max_members(self, capacity: Capacity, kind: RequestKind, priority: int, by_share: str) -> int:
        """Return how many members would fit; `by_share` is the tenant that may preempt by fair share."""
        after_drain, eventual = capacity.room[AFTER_DRAIN], capacity.room[EVENTUAL]
        freed, without_end = self._sums(priority, by_share, after_drain.shape[1])
        room = np.minimum(after_drain + freed, eventual + without_end)
        return int((count(room, kind.need) * capacity.columns.mask(kind.labels)).sum())

    def _sums(self, priority: int, by_share: str, size: int) -> tuple[Floats, Floats]:
        known = self._freed.get((priority, by_share))
        if known is None:
            leaves = (self._preemptible & (self._priority < priority)) | (
                self._spare & (self._priority <= priority)
            )
            if by_share:
                others = self._above[self._tenant] & (self._tenant != self._names[by_share])
                leaves |= self._preemptible & (self._priority == priority) & others
            row, need, endless = self._row[leaves], self._need[leaves], self._endless[leaves]
            known = _sum(row, need, size), _sum(row[endless], need[endless], size)
            self._freed[priority, by_share] = known
        return known


class CandidateTable:
    """Candidates in order of preemption and the rows of their members, as columns.

    `spared` are members that are in another table already.
    """

    def __init__(
        self,
        capacity: Capacity,
        units: Sequence[PreemptionTarget],
        priorities: Sequence[int],
        spared: Mapping[str, int],
    ) -> None:
        keys = [each.placed.job.key for each in units]
        self.units = units
        self.priorities = priorities
        self.rows: list[Ints] = []
        for key, each in zip(keys, units, strict=True):
            rows = capacity.columns.rows_at(each.placed.nodes)
            self.rows.append(rows[len(rows) - each.members : len(rows) - spared.get(key, 0)])
        lengths = [len(rows) for rows in self.rows]
        row = np.concatenate([*self.rows, np.zeros(0, dtype=np.int64)])
        needs = np.array([each.placed.job.need.vector for each in units]).reshape(-1, 3)
        endless = np.array([each.placed.job.endless for each in units], dtype=bool)
        self.ends: Ints = np.cumsum([0, *lengths])
        self.row = np.maximum(row, 0)
        self.need = np.repeat(needs, lengths, axis=0) * (row >= 0)[:, None]
        self.endless: NDArray[np.bool_] = np.repeat(endless, lengths)
        self._numbers = {key: number for number, key in enumerate(keys)}

    def remove(self, key: str) -> None:
        """Drop a job from the candidates: it is already being preempted for another job."""
        number = self._numbers.get(key)
        if number is not None:
            self.need[self.ends[number] : self.ends[number + 1]] = 0.0
            self.rows[number] = self.rows[number][:0]

    def places(self, numbers: Sequence[int]) -> Ints:
        """Return the column positions of the members of some candidates."""
        if isinstance(numbers, range):
            return np.arange(self.ends[len(numbers)])
        spans = [np.arange(self.ends[number], self.ends[number + 1]) for number in numbers]
        return np.concatenate([*spans, np.zeros(0, dtype=np.int64)])


class Candidates:
    """Parts of tables, concatenated. A job may occur twice: for its spare members, and for the rest."""

    def __init__(self, parts: Sequence[tuple[CandidateTable, Sequence[int]]]) -> None:
        self.units = [table.units[number] for table, numbers in parts for number in numbers]
        self.rows = [table.rows[number] for table, numbers in parts for number in numbers]
        places = [(table, table.places(numbers)) for table, numbers in parts]
        self._row = np.concatenate([table.row[at] for table, at in places])
        self._need = np.concatenate([table.need[at] for table, at in places])
        self._endless = np.concatenate([table.endless[at] for table, at in places])
        lengths = [np.diff(table.ends)[list(numbers)] for table, numbers in parts]
        self._ends = np.cumsum(np.concatenate(lengths))

    def fits(self, capacity: Capacity, kind: RequestKind, number: int) -> Ints:
        """Return what would fit in each row if the first `number` candidates stopped."""
        end = int(self._ends[number - 1])
        row, need, endless = self._row[:end], self._need[:end], self._endless[:end]
        after_drain, eventual = capacity.room[AFTER_DRAIN], capacity.room[EVENTUAL]
        room = after_drain + _sum(row, need, after_drain.shape[1])
        np.minimum(room, eventual + _sum(row[endless], need[endless], after_drain.shape[1]), out=room)
        return count(room, kind.need) * capacity.columns.mask(kind.labels)


def _sum(row: Ints, need: Floats, size: int) -> Floats:
    return np.stack([np.bincount(row, need[:, r], minlength=size) for r in range(3)])


def search(
    capacity: Capacity, fewest: int, kind: RequestKind, candidates: Candidates
) -> list[PreemptionTarget]:
    """Return the first candidates that free enough together, without those that are not needed; or none."""
    high = len(candidates.units)
    if not high or candidates.fits(capacity, kind, high).sum() < fewest:
        return []
    low = 1
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if candidates.fits(capacity, kind, middle).sum() >= fewest else (middle + 1, high)
        )
    better = candidates.fits(capacity, kind, low) > capacity.fits(AFTER_DRAIN, kind)
    pairs = zip(candidates.units[:low], candidates.rows, strict=False)
    helpful = [each for each, rows in pairs if len(rows) and better[rows].any()]
    return _Pruning(capacity, kind, fewest, helpful).needed()


class _Pruning:
    """Drops single candidates, as long as the rest suffices."""

    def __init__(
        self, capacity: Capacity, kind: RequestKind, fewest: int, found: Sequence[PreemptionTarget]
    ) -> None:
        self._capacity, self._kind = capacity, kind
        self._mask = capacity.columns.mask(kind.labels)
        self._missing = fewest - capacity.sum(AFTER_DRAIN, kind)
        self._room: dict[int, tuple[list[float], list[float]]] = {}
        whole = {each.placed.job.key for each in found if each.whole}
        self._found = [each for each in found if each.whole or each.placed.job.key not in whole]
        for each in self._found:
            for index in range(each.placed.members - each.members, each.placed.members):
                self._move(each.placed, index, 1.0)

    def needed(self) -> list[PreemptionTarget]:
        """Try to spare the most expensive candidates first."""
        kept = [needed for each in reversed(self._found) if (needed := self._needed(each)) is not None]
        return kept[::-1]

    def _needed(self, each: PreemptionTarget) -> PreemptionTarget | None:
        placed = each.placed
        if not each.whole:
            return self._spare(each)
        for index in range(placed.members):
            self._move(placed, index, -1.0)
        if self._missing <= 0:
            return None
        for index in range(placed.members):
            self._move(placed, index, 1.0)
        return each

    def _spare(self, each: PreemptionTarget) -> PreemptionTarget | None:
        """Spare as many members as possible, lowest index first."""
        placed, members = each.placed, each.members
        while members:
            self._move(placed, placed.members - members, -1.0)
            if self._missing > 0:
                self._move(placed, placed.members - members, 1.0)
                break
            members -= 1
        return PreemptionTarget(placed, members) if members else None

    def _move(self, placed: RunningJob, index: int, sign: float) -> None:
        """Stop one member (1) or spare it (-1), and count again what fits in its row."""
        row = self._capacity.columns.rows.get(placed.nodes[index])
        if row is None or not self._mask[row]:
            return
        if row not in self._room:
            levels = self._capacity.room
            self._room[row] = levels[AFTER_DRAIN, :, row].tolist(), levels[EVENTUAL, :, row].tolist()
        after_drain, eventual = self._room[row]
        before = self._fits(after_drain, eventual)
        for r, each in enumerate(vector(placed.job.need)):
            after_drain[r] += sign * each
            eventual[r] += sign * each * placed.job.endless
        self._missing -= self._fits(after_drain, eventual) - before

    def _fits(self, after_drain: list[float], eventual: list[float]) -> int:
        pairs = zip(after_drain, eventual, self._kind.need, strict=True)
        fits = [(min(a, b) + SLACK) // each for a, b, each in pairs if each > 0]
        return max(0, int(min(fits, default=0)))
