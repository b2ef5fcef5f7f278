"""Looks at everything that a fleet could do for some work: each pool, fewer devices of it, and all together.

Halving the devices again and again shows what time costs. The exact search runs where the choice falls; the
numbers of devices around it are climbed, which is several times as quick and nearly as good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from windlass.plan.fleet.constraints import PlanLimits
from windlass.plan.fleet.explore import PUBLISHED, LayoutEstimate, Predictor, SearchFound, exhaustive
from windlass.plan.fleet.greedy import greedy
from windlass.plan.fleet.heterogeneous import together
from windlass.plan.fleet.pareto import front
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.run_estimate import RunEstimate, outlook, worth
from windlass.plan.fleet.work import TrainingWork
from windlass.spec.protocol.progress import Progress, Report, silent

SearchName = Literal["exhaustive", "greedy"]
MAX_HALVINGS = 12
MIN_USEFUL = 0.05
"""Share of the time; with less a run does hardly anything but begin again."""
MAX_SLOWER = 2.0
"""A layout that saves memory is worth a point only if it takes no longer than so many times the best."""


@dataclass(frozen=True)
class Problem:
    """Work, the fleet that may do it, and what to keep to."""

    name: str
    work: TrainingWork
    pools: tuple[DevicePool, ...]
    limits: PlanLimits
    search: SearchName = "exhaustive"
    between_bytes_s: float | None = None
    """Between pools, of one device."""
    predict: Predictor = PUBLISHED

    def look(self, work: TrainingWork, pool: DevicePool, search: SearchName | None = None) -> SearchFound:
        walk = {"exhaustive": exhaustive, "greedy": greedy}[search or self.search]
        return walk(work, pool, self.limits.objective, self.predict)

    def climb(self, work: TrainingWork, pool: DevicePool) -> SearchFound:
        return self.look(work, pool, "greedy")


@dataclass
class SearchResult:
    """What was seen."""

    outlooks: list[RunEstimate] = field(default_factory=list)
    """One for each pool and number of devices, and those of all pools together."""
    points: list[RunEstimate] = field(default_factory=list)
    """Layouts that no other on as many devices beats in time and memory."""
    counted: int = 0
    smallest: LayoutEstimate | None = None
    hopeless: RunEstimate | None = None
    """One that fails too often to come to an end."""
    searched: dict[tuple[str, int], SearchFound] = field(default_factory=dict)
    """Searches of the kind that was asked for, by device and number."""

    def choice(self, limits: PlanLimits) -> RunEstimate | None:
        """The best that keeps to the limits."""
        kept = (seen for seen in self.outlooks if limits.keeps(seen))
        return min(kept, key=lambda seen: worth(seen, limits.objective), default=None)


def survey(question: Problem, report: Report = silent) -> SearchResult:
    """Look at all pools, in all sizes."""
    seen = SearchResult()
    sizes = [(pool, count) for pool in question.pools for count in halvings(pool.devices)]
    for done, (pool, count) in enumerate(sizes):
        report(Progress("search", done, len(sizes), "fleets"))
        look(question, pool.of(count), seen, whole=count == pool.devices)
    if len(question.pools) > 1:
        team = together(question.work, question.pools, question.climb, question.between_bytes_s)
        seen.outlooks += [team] if team is not None else []
    report(Progress("search", len(sizes), len(sizes), "fleets"))
    return seen


def look(
    question: Problem, pool: DevicePool, seen: SearchResult, *, whole: bool = False
) -> RunEstimate | None:
    """Add what so many devices of a pool can do; the whole of it is searched as was asked for.

    Of a part of the pool only those devices count that the best layout uses: nobody would take more.
    """
    if whole:
        found = exact(question, pool, seen)
    else:
        found = question.climb(question.work, pool)
        seen.counted += found.counted
    seen.smallest = _smaller(seen.smallest, found.smallest)
    if found.best is None:
        return None
    chosen = _in_time(question, pool, found.options)
    if not whole:
        pool = pool.of(chosen.case.devices)
    best = outlook(question.work, pool, chosen)
    if best.goodput.useful < MIN_USEFUL:
        seen.hopeless = best
        return None
    seen.outlooks.append(best)
    useful = [weighed for weighed in found.options if weighed.step_s <= MAX_SLOWER * found.best.step_s]
    light = front(useful, lambda w: (w.step_s, w.memory.bytes))
    seen.points += [outlook(question.work, pool, weighed) for weighed in light]
    return best


def _in_time(question: Problem, pool: DevicePool, options: tuple[LayoutEstimate, ...]) -> LayoutEstimate:
    """Return the best that is in time, or else the quickest: what saves memory may be too late."""
    quickest = min(options, key=lambda weighed: weighed.step_s)
    if question.limits.deadline_s is None or options[0] is quickest:
        return options[0]
    early = (w for w in options if question.limits.late(outlook(question.work, pool, w)) <= 1)
    return next(early, quickest)


def exact(question: Problem, pool: DevicePool, seen: SearchResult) -> SearchFound:
    """Search so many devices of a pool as was asked for, once."""
    key = (pool.device.name, pool.devices)
    if key not in seen.searched:
        seen.searched[key] = question.look(question.work, pool)
        seen.counted += seen.searched[key].counted
    return seen.searched[key]


def fewest(question: Problem, pool: DevicePool, seen: SearchResult) -> RunEstimate | None:
    """Return the run with the fewest devices of a pool that is in time, or None if all of them are too late.

    More devices are never slower by much, so halving the gap finds the border, in whole machines.
    """
    unit = pool.per_machine if pool.devices > pool.per_machine else 1
    best = look(question, pool, seen)
    if best is None or question.limits.late(best) > 1:
        return None
    late, early = 0, pool.devices // unit
    while early - late > 1:
        middle = (late + early) // 2
        tried = look(question, pool.of(middle * unit), seen)
        if tried is not None and question.limits.late(tried) <= 1:
            best, early = tried, -(-tried.devices // unit)
        else:
            late = middle
    return best


def halvings(devices: int) -> Iterator[int]:
    """Yield a number of devices and its halves, down to one."""
    for _ in range(MAX_HALVINGS):
        yield devices
        if devices == 1:
            return
        devices = -(-devices // 2)


def _smaller(one: LayoutEstimate | None, other: LayoutEstimate | None) -> LayoutEstimate | None:
    both = [weighed for weighed in (one, other) if weighed is not None]
    return min(both, key=lambda w: w.memory.bytes / w.case.device.memory_bytes, default=None)
