"""Who makes room for a job that cannot wait: the least that suffices, from those who lose the least.

Members above the fewest that an elastic job can do with go first: nothing is lost with them. Then whole
jobs, of lower priority or of a tenant that has more than its share, go in this order: lowest priority, most
over its share, least work since the last save, begun last.

Why two jobs never take turns at pushing each other out: by priority one is above the other, always. By share,
a tenant takes only up to its share, and only what another has above its own; afterwards neither may take it
back. Both hold as long as the set of tenants does; against changes of it, nobody is asked to leave before it
has run for View.min_run_s.
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
    LATER,
    SLACK,
    SOON,
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
"""A tenant takes from another of its priority when it has less than this part of its share."""


@dataclass(frozen=True, slots=True)
class Yield:
    """So many members of a job leave, the last ones; all of them when it is preempted."""

    placed: RunningJob
    members: int
    by_share: bool = False

    @property
    def whole(self) -> bool:
        return self.members == self.placed.members


class Preemptor:
    """Those who could be asked to make room in one round."""

    def __init__(
        self,
        placed: Sequence[RunningJob],
        accounts: Mapping[str, TenantUsage],
        now_s: float,
        min_run_s: float,
    ) -> None:
        self._accounts, self._now_s = accounts, now_s
        self._able = [
            each
            for each in placed
            if not each.leaving and now_s - each.since_s >= min_run_s and len(each.nodes) == each.members
        ]
        self._over = {tenant: account.now / account.fair for tenant, account in accounts.items()}
        self._vain: dict[tuple[RequestKind, int, str], int] = {}
        """The fewest members for which nobody could make room, by kind, priority and tenant."""
        self._parts: dict[MemberResources, float] = {}
        self._all: UpperBound | None = None
        self._stands: dict[bool, Stand] = {}
        """Members that jobs can spare (False), and whole jobs without these (True)."""
        self._crowds: dict[tuple[int, str | None], Candidates] = {}
        self._gone: set[str] = set()

    @cached_property
    def _ranked(self) -> list[RunningJob]:
        return self._in_order(self._able)

    @cached_property
    def _elastic(self) -> list[RunningJob]:
        return self._in_order(each for each in self._able if each.members > each.ask.fewest)

    def _in_order(self, able: Iterable[RunningJob]) -> list[RunningJob]:
        return [ranked[-1] for ranked in sorted(map(self._price, able), key=itemgetter(0, 1, 2, 3, 4))]

    def find(self, ground: Capacity, ask: PendingJob, kind: RequestKind) -> list[Yield]:
        """Return who leaves so that the fewest members of the ask fit; nobody when that cannot be had."""
        priority = priority_of(ask, self._accounts[ask.tenant].share)
        by_share = self._is_far_below(ask, kind)
        case = (kind, priority, ask.tenant if by_share else "")
        if ask.fewest >= self._vain.get(case, ask.fewest + 1):
            return []
        found = self._search(ground, ask, kind, priority, by_share=by_share)
        if not found:
            self._vain[case] = ask.fewest
        for each in found:
            self.take(each.placed)
        return [replace(each, by_share=self._priority(each.placed) == priority) for each in found]

    def _search(
        self, ground: Capacity, ask: PendingJob, kind: RequestKind, priority: int, *, by_share: bool
    ) -> list[Yield]:
        """Look among members that can be spared, who leave first; then among all, if all would do."""
        if found := search(ground, ask.fewest, kind, self._spares(ground, priority)):
            return found
        if self._hope(ground).most(ground, kind, priority, ask.tenant if by_share else "") < ask.fewest:
            return []
        return search(ground, ask.fewest, kind, self._crowd(ground, ask, priority, by_share=by_share))

    def _spares(self, ground: Capacity, priority: int) -> Candidates:
        case = (priority, None)
        crowd = self._crowds.get(case)
        if crowd is None:
            spare = self._stand(ground, whole=False)
            crowd = self._crowds[case] = Candidates(
                [(spare, range(bisect_right(spare.priorities, priority)))]
            )
        return crowd

    def _hope(self, ground: Capacity) -> UpperBound:
        if self._all is None:
            self._all = UpperBound(ground, self._able, self._priority, self._over)
        return self._all

    def _crowd(self, ground: Capacity, ask: PendingJob, priority: int, *, by_share: bool) -> Candidates:
        """Gather who may be asked to leave; the same for all asks, until somebody was chosen."""
        case = (priority, ask.tenant if by_share else "")
        crowd = self._crowds.get(case)
        if crowd is None:
            spare, whole = self._stand(ground, whole=False), self._stand(ground, whole=True)
            parts: list[tuple[Stand, Sequence[int]]] = [
                (spare, range(bisect_right(spare.priorities, priority))),
                (whole, range(bisect_left(whole.priorities, priority))),
            ]
            if by_share:
                parts.append((whole, self._above(ask, priority, whole)))
            crowd = self._crowds[case] = Candidates(parts)
        return crowd

    def _stand(self, ground: Capacity, *, whole: bool) -> Stand:
        """Put those who could leave in columns: the members that they can spare, or all others."""
        known = self._stands.get(whole)
        if known is None:
            spare = {each.ask.key: each.members - each.ask.fewest for each in self._elastic}
            if whole:
                units = [Yield(each, each.members) for each in self._ranked if each.ask.preemptible]
            else:
                units = [Yield(each, spare[each.ask.key]) for each in self._elastic]
            priorities = [self._priority(each.placed) for each in units]
            known = self._stands[whole] = Stand(ground, units, priorities, spared=spare if whole else {})
            for key in self._gone:
                known.remove(key)
        return known

    def own(self, ask: PendingJob) -> list[RunningJob]:
        """Return the tenant's own jobs of lower priority, in the order in which they would leave."""
        return [
            each
            for each in self._ranked
            if each.ask.preemptible
            and each.ask.tenant == ask.tenant
            and each.ask.priority < ask.priority
            and each.ask.key not in self._gone
        ]

    def take(self, placed: RunningJob) -> None:
        self._gone.add(placed.ask.key)
        for stand in self._stands.values():
            stand.remove(placed.ask.key)
        self._crowds.clear()

    def _is_far_below(self, ask: PendingJob, kind: RequestKind) -> bool:
        account = self._accounts[ask.tenant]
        after = account.now + account.part(kind.need, ask.fewest)
        return account.now < FAR_BELOW * account.fair and after <= account.fair

    def _above(self, ask: PendingJob, priority: int, whole: Stand) -> list[int]:
        """Return jobs of the same priority that their tenants have above their shares, all taken together."""
        first, last = bisect_left(whole.priorities, priority), bisect_right(whole.priorities, priority)
        given: dict[str, float] = {}
        found = []
        for number in range(first, last):
            each = whole.units[number].placed
            tenant = each.ask.tenant
            account = self._accounts[tenant]
            if tenant == ask.tenant or self._over[tenant] <= 1.0 or each.ask.key in self._gone:
                continue
            gives = given.get(tenant, 0.0) + account.part(vector(each.ask.need), each.members)
            if account.now - gives >= account.fair:
                given[tenant] = gives
                found.append(number)
        return found

    def _priority(self, each: RunningJob) -> int:
        return priority_of(each.ask, self._accounts[each.ask.tenant].share)

    def _price(self, each: RunningJob) -> tuple[float, float, float, float, str, RunningJob]:
        """Return what is lost with a job, in the order in which it counts, and the job."""
        ask, since_s = each.ask, each.since_s
        saved_s = since_s if each.saved_s is None else max(each.saved_s, since_s)
        unsaved = (self._now_s - saved_s) * each.members * self._part(ask.need)
        return self._priority(each), -self._over[ask.tenant], unsaved, -since_s, ask.key, each

    def _part(self, need: MemberResources) -> float:
        """Return which part of the fleet a member is; jobs of one kind ask again and again."""
        part = self._parts.get(need)
        if part is None:
            account = next(iter(self._accounts.values()))
            part = self._parts[need] = account.part(vector(need), 1)
        return part


class UpperBound:
    """What could be free if everybody left who may be asked to.

    Never less than what those who are asked at last would free (Crowd), and known without their order, which
    takes longer to find out than it takes to see that all of them would not do.
    """

    def __init__(
        self,
        ground: Capacity,
        able: Sequence[RunningJob],
        priority_of: Callable[[RunningJob], int],
        over: Mapping[str, float],
    ) -> None:
        asks = [each.ask for each in able]
        rows = [ground.columns.rows_at(each.nodes) for each in able]
        lengths = np.array([len(each) for each in rows], dtype=np.int64)
        row = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
        needs = np.array([ask.need.vector for ask in asks]).reshape(-1, 3)
        number = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._row = np.maximum(row, 0)
        self._need = np.repeat(needs, lengths, axis=0) * (row >= 0)[:, None]
        self._endless = np.repeat(np.array([ask.endless for ask in asks], dtype=bool), lengths)
        self._priority = np.repeat(np.array([priority_of(each) for each in able]), lengths)
        self._preemptible = np.repeat(np.array([ask.preemptible for ask in asks], dtype=bool), lengths)
        self._spare = number >= np.repeat(np.array([ask.fewest for ask in asks], dtype=np.int64), lengths)
        names = {tenant: at for at, tenant in enumerate(over)}
        self._above = np.array([part > 1.0 for part in over.values()], dtype=bool)
        self._names = names
        self._tenant = np.repeat(np.array([names[ask.tenant] for ask in asks], dtype=np.int64), lengths)
        self._freed: dict[tuple[int, str], tuple[Floats, Floats]] = {}

    def most(self, ground: Capacity, kind: RequestKind, priority: int, by_share: str) -> int:
        """Return how many members would fit at most; `by_share` is the tenant that may take by its share."""
        soon, later = ground.room[SOON], ground.room[LATER]
        freed, without_end = self._sums(priority, by_share, soon.shape[1])
        room = np.minimum(soon + freed, later + without_end)
        return int((count(room, kind.need) * ground.columns.mask(kind.labels)).sum())

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


class Stand:
    """Who could leave, in order, and where they are, in columns.

    `spared` are members that were counted elsewhere already.
    """

    def __init__(
        self,
        ground: Capacity,
        units: Sequence[Yield],
        priorities: Sequence[int],
        spared: Mapping[str, int],
    ) -> None:
        keys = [each.placed.ask.key for each in units]
        self.units = units
        self.priorities = priorities
        self.rows: list[Ints] = []
        for key, each in zip(keys, units, strict=True):
            rows = ground.columns.rows_at(each.placed.nodes)
            self.rows.append(rows[len(rows) - each.members : len(rows) - spared.get(key, 0)])
        lengths = [len(rows) for rows in self.rows]
        row = np.concatenate([*self.rows, np.zeros(0, dtype=np.int64)])
        needs = np.array([each.placed.ask.need.vector for each in units]).reshape(-1, 3)
        endless = np.array([each.placed.ask.endless for each in units], dtype=bool)
        self.ends: Ints = np.cumsum([0, *lengths])
        self.row = np.maximum(row, 0)
        self.need = np.repeat(needs, lengths, axis=0) * (row >= 0)[:, None]
        self.endless: NDArray[np.bool_] = np.repeat(endless, lengths)
        self._numbers = {key: number for number, key in enumerate(keys)}

    def remove(self, key: str) -> None:
        """Count no more on somebody who leaves for another."""
        number = self._numbers.get(key)
        if number is not None:
            self.need[self.ends[number] : self.ends[number + 1]] = 0.0
            self.rows[number] = self.rows[number][:0]

    def places(self, numbers: Sequence[int]) -> Ints:
        """Return where the members of some stand in the columns."""
        if isinstance(numbers, range):
            return np.arange(self.ends[len(numbers)])
        spans = [np.arange(self.ends[number], self.ends[number + 1]) for number in numbers]
        return np.concatenate([*spans, np.zeros(0, dtype=np.int64)])


class Candidates:
    """Parts of stands in a row. A job may be in it twice: for what it can spare, and for the rest."""

    def __init__(self, parts: Sequence[tuple[Stand, Sequence[int]]]) -> None:
        self.units = [stand.units[number] for stand, numbers in parts for number in numbers]
        self.rows = [stand.rows[number] for stand, numbers in parts for number in numbers]
        places = [(stand, stand.places(numbers)) for stand, numbers in parts]
        self._row = np.concatenate([stand.row[at] for stand, at in places])
        self._need = np.concatenate([stand.need[at] for stand, at in places])
        self._endless = np.concatenate([stand.endless[at] for stand, at in places])
        lengths = [np.diff(stand.ends)[list(numbers)] for stand, numbers in parts]
        self._ends = np.cumsum(np.concatenate(lengths))

    def fits(self, ground: Capacity, kind: RequestKind, number: int) -> Ints:
        """Return what would fit if the first so many left, for all rows at once."""
        end = int(self._ends[number - 1])
        row, need, endless = self._row[:end], self._need[:end], self._endless[:end]
        soon, later = ground.room[SOON], ground.room[LATER]
        room = soon + _sum(row, need, soon.shape[1])
        np.minimum(room, later + _sum(row[endless], need[endless], soon.shape[1]), out=room)
        return count(room, kind.need) * ground.columns.mask(kind.labels)


def _sum(row: Ints, need: Floats, size: int) -> Floats:
    return np.stack([np.bincount(row, need[:, r], minlength=size) for r in range(3)])


def search(ground: Capacity, fewest: int, kind: RequestKind, crowd: Candidates) -> list[Yield]:
    """Return the first candidates that make room together, without any that is not needed; or none."""
    high = len(crowd.units)
    if not high or crowd.fits(ground, kind, high).sum() < fewest:
        return []
    low = 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if crowd.fits(ground, kind, middle).sum() >= fewest else (middle + 1, high)
    better = crowd.fits(ground, kind, low) > ground.fits(SOON, kind)
    pairs = zip(crowd.units[:low], crowd.rows, strict=False)
    helpful = [each for each, rows in pairs if len(rows) and better[rows].any()]
    return _Pruning(ground, kind, fewest, helpful).needed()


class _Pruning:
    """Lets candidates stay after all, one by one, as long as what is left suffices."""

    def __init__(self, ground: Capacity, kind: RequestKind, fewest: int, found: Sequence[Yield]) -> None:
        self._ground, self._kind = ground, kind
        self._mask = ground.columns.mask(kind.labels)
        self._missing = fewest - ground.sum(SOON, kind)
        self._room: dict[int, tuple[list[float], list[float]]] = {}
        whole = {each.placed.ask.key for each in found if each.whole}
        self._found = [each for each in found if each.whole or each.placed.ask.key not in whole]
        for each in self._found:
            for index in range(each.placed.members - each.members, each.placed.members):
                self._move(each.placed, index, 1.0)

    def needed(self) -> list[Yield]:
        """Try to keep the dearest first."""
        kept = [needed for each in reversed(self._found) if (needed := self._needed(each)) is not None]
        return kept[::-1]

    def _needed(self, each: Yield) -> Yield | None:
        placed = each.placed
        if not each.whole:
            return self._shorter(each)
        for index in range(placed.members):
            self._move(placed, index, -1.0)
        if self._missing <= 0:
            return None
        for index in range(placed.members):
            self._move(placed, index, 1.0)
        return each

    def _shorter(self, each: Yield) -> Yield | None:
        """Let as many members stay as can; the first of those that were to leave first."""
        placed, members = each.placed, each.members
        while members:
            self._move(placed, placed.members - members, -1.0)
            if self._missing > 0:
                self._move(placed, placed.members - members, 1.0)
                break
            members -= 1
        return Yield(placed, members) if members else None

    def _move(self, placed: RunningJob, index: int, sign: float) -> None:
        """Let one member go (1) or stay after all (-1), and count again what fits in its row."""
        row = self._ground.columns.rows.get(placed.nodes[index])
        if row is None or not self._mask[row]:
            return
        if row not in self._room:
            levels = self._ground.room
            self._room[row] = levels[SOON, :, row].tolist(), levels[LATER, :, row].tolist()
        soon, later = self._room[row]
        before = self._fits(soon, later)
        for r, each in enumerate(vector(placed.ask.need)):
            soon[r] += sign * each
            later[r] += sign * each * placed.ask.endless
        self._missing -= self._fits(soon, later) - before

    def _fits(self, soon: list[float], later: list[float]) -> int:
        pairs = zip(soon, later, self._kind.need, strict=True)
        fits = [(min(a, b) + SLACK) // each for a, b, each in pairs if each > 0]
        return max(0, int(min(fits, default=0)))
