"""Searches everything that a fleet could do for some work: each pool, fewer devices of it, all together.

Halving the devices again and again shows the price of time. The exact search runs around the choice; for
other numbers of devices the greedy search runs, which is several times as quick and nearly as good.
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
from windlass.plan.fleet.run_estimate import RunEstimate, estimate_run, worth
from windlass.plan.fleet.work import TrainingWork
from windlass.spec.protocol.progress import Progress, Report, silent

SearchName = Literal["exhaustive", "greedy"]
MAX_HALVINGS = 12
MIN_USEFUL = 0.05
"""Share of the time; with less, a run does hardly anything but restart."""
MAX_SLOWER = 2.0
"""A layout that saves memory is a point only if it takes at most this many times the best."""


@dataclass(frozen=True)
class Problem:
    """The work, the fleet and the limits."""

    name: str
    work: TrainingWork
    pools: tuple[DevicePool, ...]
    limits: PlanLimits
    search: SearchName = "exhaustive"
    between_bytes_s: float | None = None
    """Bandwidth of one device between pools."""
    predict: Predictor = PUBLISHED

    def find(self, work: TrainingWork, pool: DevicePool, search: SearchName | None = None) -> SearchFound:
        walk = {"exhaustive": exhaustive, "greedy": greedy}[search or self.search]
        return walk(work, pool, self.limits.objective, self.predict)

    def climb(self, work: TrainingWork, pool: DevicePool) -> SearchFound:
        return self.find(work, pool, "greedy")


@dataclass
class SearchResult:
    """All runs that were estimated."""

    runs: list[RunEstimate] = field(default_factory=list)
    """One for each pool and number of devices, and those of all pools together."""
    points: list[RunEstimate] = field(default_factory=list)
    """Layouts that no other on as many devices beats in time and memory."""
    counted: int = 0
    smallest: LayoutEstimate | None = None
    hopeless: RunEstimate | None = None
    """A run that fails too often to finish."""
    searched: dict[tuple[str, int], SearchFound] = field(default_factory=dict)
    """Results of the requested kind of search, by device and number."""

    def choice(self, limits: PlanLimits) -> RunEstimate | None:
        """The best run within the limits."""
        kept = (seen for seen in self.runs if limits.keeps(seen))
        return min(kept, key=lambda seen: worth(seen, limits.objective), default=None)


def survey(problem: Problem, report: Report = silent) -> SearchResult:
    """Search all pools, in all sizes."""
    seen = SearchResult()
    sizes = [(pool, count) for pool in problem.pools for count in halvings(pool.devices)]
    for done, (pool, count) in enumerate(sizes):
        report(Progress("search", done, len(sizes), "fleets"))
        search_pool(problem, pool.of(count), seen, whole=count == pool.devices)
    if len(problem.pools) > 1:
        team = together(problem.work, problem.pools, problem.climb, problem.between_bytes_s)
        seen.runs += [team] if team is not None else []
    report(Progress("search", len(sizes), len(sizes), "fleets"))
    return seen


def search_pool(
    problem: Problem, pool: DevicePool, seen: SearchResult, *, whole: bool = False
) -> RunEstimate | None:
    """Add the runs of a number of devices of a pool; the whole pool gets the requested search.

    Of a part of the pool only those devices count that the best layout uses.
    """
    if whole:
        found = exact(problem, pool, seen)
    else:
        found = problem.climb(problem.work, pool)
        seen.counted += found.counted
    seen.smallest = _smaller(seen.smallest, found.smallest)
    if found.best is None:
        return None
    chosen = _in_time(problem, pool, found.options)
    if not whole:
        pool = pool.of(chosen.case.devices)
    best = estimate_run(problem.work, pool, chosen)
    if best.goodput.useful < MIN_USEFUL:
        seen.hopeless = best
        return None
    seen.runs.append(best)
    useful = [estimate for estimate in found.options if estimate.step_s <= MAX_SLOWER * found.best.step_s]
    light = front(useful, lambda w: (w.step_s, w.memory.bytes))
    seen.points += [estimate_run(problem.work, pool, estimate) for estimate in light]
    return best


def _in_time(problem: Problem, pool: DevicePool, options: tuple[LayoutEstimate, ...]) -> LayoutEstimate:
    """Return the best layout in time, or else the quickest: one that saves memory may be too late."""
    quickest = min(options, key=lambda estimate: estimate.step_s)
    if problem.limits.deadline_s is None or options[0] is quickest:
        return options[0]
    early = (w for w in options if problem.limits.late(estimate_run(problem.work, pool, w)) <= 1)
    return next(early, quickest)


def exact(problem: Problem, pool: DevicePool, seen: SearchResult) -> SearchFound:
    """Run the requested search on a pool, once."""
    key = (pool.device.name, pool.devices)
    if key not in seen.searched:
        seen.searched[key] = problem.find(problem.work, pool)
        seen.counted += seen.searched[key].counted
    return seen.searched[key]


def fewest(problem: Problem, pool: DevicePool, seen: SearchResult) -> RunEstimate | None:
    """Return the run with the fewest devices of a pool that is in time, or None if all of them are too late.

    More devices are never slower by much, so bisection finds the boundary, in whole machines.
    """
    unit = pool.per_machine if pool.devices > pool.per_machine else 1
    best = search_pool(problem, pool, seen)
    if best is None or problem.limits.late(best) > 1:
        return None
    late, early = 0, pool.devices // unit
    while early - late > 1:
        middle = (late + early) // 2
        tried = search_pool(problem, pool.of(middle * unit), seen)
        if tried is not None and problem.limits.late(tried) <= 1:
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
    both = [estimate for estimate in (one, other) if estimate is not None]
    return min(both, key=lambda w: w.memory.bytes / w.case.device.memory_bytes, default=None)
