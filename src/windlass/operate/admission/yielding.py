"""Who makes room for a job that cannot wait: the least that suffices, from those who lose the least.

Members above the fewest that an elastic job can do with go first: nothing is lost with them. Then whole
jobs, of lower priority or of a tenant that has more than its share, go in this order: lowest priority, most
over its share, least work since the last save, begun last.

Why two jobs never take turns at pushing each other out: by priority one is above the other, always. By share,
a tenant takes only up to its share, and only what another has above its own; afterwards neither may take it
back. Both hold as long as the set of tenants does; against changes of it, nobody is asked to leave before it
has run for View.least_run_s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from windlass.operate.admission.ground import LATER, SOON, Ground, Kind, Vector, vector
from windlass.operate.admission.shares import Account, priority_of
from windlass.operate.admission.view import Ask, Placed

FAR_BELOW = 0.5
"""A tenant takes from another of its priority when it has less than this part of its share."""


@dataclass(frozen=True, slots=True)
class Yield:
    """So many members of a job leave; all of them when it is preempted."""

    placed: Placed
    members: int
    by_share: bool = False

    @property
    def whole(self) -> bool:
        return self.members == self.placed.members


class Yielders:
    """Those who could be asked to make room in one round."""

    def __init__(
        self, placed: Sequence[Placed], accounts: Mapping[str, Account], now_s: float, least_run_s: float
    ) -> None:
        self._accounts = accounts
        able = [
            each
            for each in placed
            if not each.leaving and now_s - each.since_s >= least_run_s and len(each.nodes) == each.members
        ]
        self._able, self._now_s = able, now_s
        self._elastic = [each for each in able if each.members > each.ask.fewest]
        self._elastic.sort(key=self._price)
        self._lowest = min((self._priority(each) for each in able), default=0)
        self._vain: set[tuple[Kind, int, int, str]] = set()
        self._gone: set[str] = set()

    @cached_property
    def _whole(self) -> list[Placed]:
        return sorted((each for each in self._able if each.ask.preemptible), key=self._price)

    def find(self, ground: Ground, ask: Ask, kind: Kind) -> list[Yield]:
        """Return who leaves so that the fewest members of the ask fit; nobody when that cannot be had."""
        priority = priority_of(ask, self._accounts[ask.tenant].share)
        case = (kind, ask.fewest, priority, ask.tenant)
        by_share = self._is_far_below(ask, kind)
        nobody = self._lowest >= priority and not by_share
        if case in self._vain or (nobody and not self._elastic):
            return []
        search = _Search(ground, ask, kind)
        found = self._search(search, ask, priority, by_share=by_share)
        if not found:
            self._vain.add(case)
        self._gone.update(each.placed.ask.key for each in found)
        return found

    def own(self, ask: Ask) -> list[Placed]:
        """Return the tenant's own jobs of lower priority, in the order in which they would leave."""
        return [
            each
            for each in self._whole
            if each.ask.tenant == ask.tenant
            and each.ask.priority < ask.priority
            and each.ask.key not in self._gone
        ]

    def take(self, placed: Placed) -> None:
        self._gone.add(placed.ask.key)

    def _search(self, search: _Search, ask: Ask, priority: int, *, by_share: bool) -> list[Yield]:
        for each in self._elastic:
            if self._priority(each) <= priority and each.ask.key not in self._gone:
                search.shrink(each)
                if search.suffices:
                    return search.pruned()
        given: dict[str, float] = {}
        for each in self._whole:
            at = self._priority(each)
            if at > priority or (at == priority and not by_share):
                break
            if each.ask.key in self._gone or (at == priority and not self._above(each, ask, given)):
                continue
            search.preempt(each, by_share=at == priority)
            if search.suffices:
                return search.pruned()
        return []

    def _is_far_below(self, ask: Ask, kind: Kind) -> bool:
        account = self._accounts[ask.tenant]
        after = account.now + account.part(kind.need, ask.fewest)
        return account.now < FAR_BELOW * account.fair and after <= account.fair

    def _above(self, each: Placed, ask: Ask, given: dict[str, float]) -> bool:
        """Tell whether a job is above its tenant's share, together with what the tenant gives already."""
        tenant = each.ask.tenant
        if tenant == ask.tenant:
            return False
        account = self._accounts[tenant]
        gives = given.get(tenant, 0.0) + account.part(vector(each.ask.need), each.members)
        if account.now - gives < account.fair:
            return False
        given[tenant] = gives
        return True

    def _priority(self, each: Placed) -> int:
        return priority_of(each.ask, self._accounts[each.ask.tenant].share)

    def _price(self, each: Placed) -> tuple[float, float, float, float, str]:
        account = self._accounts[each.ask.tenant]
        over = account.now / account.fair
        saved_s = each.since_s if each.saved_s is None else max(each.saved_s, each.since_s)
        unsaved = (self._now_s - saved_s) * account.part(vector(each.ask.need), each.members)
        return self._priority(each), -over, unsaved, -each.since_s, each.ask.key


class _Search:
    """Tries out departures, row by row, without touching the ground."""

    def __init__(self, ground: Ground, ask: Ask, kind: Kind) -> None:
        self._ground, self._kind = ground, kind
        self._soon, self._later = ground.room[SOON], ground.room[LATER]
        self._mask = ground.columns.mask(kind.labels)
        self._missing = ask.fewest - ground.sum(SOON, kind)
        self._extra: dict[int, tuple[Vector, Vector]] = {}
        self._found: list[Yield] = []

    @property
    def suffices(self) -> bool:
        return self._missing <= 0

    def shrink(self, placed: Placed) -> None:
        """Let go members above the fewest, the last ones first, until it suffices."""
        members = 0
        while not self.suffices and placed.members - members > placed.ask.fewest:
            members += 1
            self._move(placed, placed.members - members, 1)
        if members:
            self._found.append(Yield(placed, members))

    def preempt(self, placed: Placed, *, by_share: bool) -> None:
        """Let go all of a job, and forget that it was only to shrink."""
        shrunk = next((each for each in self._found if each.placed is placed), None)
        left = placed.members - (shrunk.members if shrunk else 0)
        if not any(self._mask[row] for row in self._ground.rows_of(placed.nodes)):
            return
        if shrunk:
            self._found.remove(shrunk)
        for index in range(left):
            self._move(placed, index, 1)
        self._found.append(Yield(placed, placed.members, by_share))

    def pruned(self) -> list[Yield]:
        """Return who must leave, without those, and without members, that were not needed in the end."""
        kept = [needed for each in reversed(self._found) if (needed := self._needed(each)) is not None]
        return kept[::-1]

    def _needed(self, each: Yield) -> Yield | None:
        placed = each.placed
        if each.whole:
            self._turn_back(placed, range(placed.members))
            if self.suffices:
                return None
            for index in range(placed.members):
                self._move(placed, index, 1)
            return each
        members = each.members
        while members:
            self._move(placed, placed.members - members, -1)
            if not self.suffices:
                self._move(placed, placed.members - members, 1)
                break
            members -= 1
        return Yield(placed, members) if members else None

    def _turn_back(self, placed: Placed, indices: range) -> None:
        for index in indices:
            self._move(placed, index, -1)

    def _move(self, placed: Placed, index: int, sign: int) -> None:
        """Let one member go (1) or stay after all (-1), and count again what fits in its row."""
        row = self._ground.columns.rows.get(placed.nodes[index])
        if row is None or not self._mask[row]:
            return
        before = self._fits(row)
        need = vector(placed.ask.need)
        soon, later = self._extra.get(row, ((0.0,) * 3, (0.0,) * 3))
        soon = tuple(a + sign * b for a, b in zip(soon, need, strict=True))
        if placed.ask.endless:
            later = tuple(a + sign * b for a, b in zip(later, need, strict=True))
        self._extra[row] = (soon, later)  # type: ignore[assignment]
        self._missing -= self._fits(row) - before

    def _fits(self, row: int) -> int:
        soon, later = self._extra.get(row, ((0.0,) * 3, (0.0,) * 3))
        fits = 1_000_000.0
        for r, each in enumerate(self._kind.need):
            if each > 0:
                room = min(self._soon[r, row] + soon[r], self._later[r, row] + later[r])
                fits = min(fits, (room + 1e-6) // each)
        return max(0, int(fits))
