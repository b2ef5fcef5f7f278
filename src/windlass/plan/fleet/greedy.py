"""Finds a good layout by hill climbing: one change at a time, until none helps.

Where nothing fits yet, "better" is less memory. A layout is estimated once, however many paths cross it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from windlass.plan.cost.step_config import Precision
from windlass.plan.fleet.explore import (
    PUBLISHED,
    LayoutEstimate,
    Objective,
    Predictor,
    SearchFound,
    estimate_layout,
    found,
    value,
)
from windlass.plan.fleet.layouts import (
    Division,
    Shards,
    divisions,
    micro_batches,
    precisions,
    recomputed,
    shardings,
)
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.work import TrainingWork

GLANCED_MICRO_BATCH = 8
AXES = 5
"""Of a Division, those that are chosen: tp, pp, virtual, cp, ep. All other devices divide the batch."""


@dataclass(frozen=True)
class GreedyPoint:
    """A layout but for its recomputation, which memory decides."""

    division: Division
    precision: Precision
    sharding: Shards
    micro_batch: int


def greedy(
    work: TrainingWork, pool: DevicePool, objective: Objective = "time", predict: Predictor = PUBLISHED
) -> SearchFound:
    """Climb from the divisions whose first estimate is best."""
    climb = _Climb(work, pool, objective, predict)
    for start in climb.starts():
        climb.up(start)
    return found((estimate for seen in climb.seen.values() for estimate in seen), objective)


class _Climb:
    """The state of one search."""

    def __init__(
        self, work: TrainingWork, pool: DevicePool, objective: Objective, predict: Predictor
    ) -> None:
        self.seen: dict[GreedyPoint, list[LayoutEstimate]] = {}
        self._work, self._pool, self._objective, self._predict = work, pool, objective, predict
        self._known = {astuple(d)[:AXES]: d for d in divisions(work, pool)}
        self._values = [sorted({key[axis] for key in self._known}) for axis in range(AXES)]

    def starts(self) -> list[GreedyPoint]:
        """Estimate every division without virtual stages, and start from the best.

        A climb seldom changes the tensor degree, switches between a pipeline and none, or between sharded and
        whole weights, so each of these has a start of its own.
        """
        plain = [d for d in self._known.values() if d.virtual == 1] or list(self._known.values())
        best: dict[tuple[int, bool, bool], GreedyPoint] = {}
        for spot in sorted((s for division in plain for s in self._spots(division)), key=self._height):
            kind = (spot.division.tp, spot.division.pp > 1, spot.sharding[0] == "full")
            best.setdefault(kind, spot)
        return list(best.values())

    def up(self, spot: GreedyPoint) -> None:
        """Go to the best neighbour while there is a better one."""
        while True:
            best = min(self._neighbours(spot), key=self._height, default=spot)
            if self._height(best) >= self._height(spot):
                return
            spot = best

    def _height(self, spot: GreedyPoint) -> tuple[bool, tuple[float, float]]:
        if spot not in self.seen:
            self.seen[spot] = list(self._look(spot))
        return min((not w.fits, value(w, self._objective)) for w in self.seen[spot])

    def _look(self, spot: GreedyPoint) -> Iterator[LayoutEstimate]:
        """Estimate recomputations until one fits."""
        parts = (spot.division, spot.precision, spot.sharding, spot.micro_batch)
        for case in recomputed(self._work, self._pool, *parts):
            yield (seen := estimate_layout(self._work, case, self._predict))
            if seen.fits and self._objective != "memory":
                return

    def _spots(self, division: Division) -> Iterator[GreedyPoint]:
        """The smallest and a large micro-batch, with the optimizer divided and with everything divided."""
        micros, shards = micro_batches(self._work, division), shardings(self._work, self._pool, division)
        full = [sharding for sharding in shards if sharding[0] == "full"]
        glanced = dict.fromkeys([*micros[:1], *[m for m in micros if m <= GLANCED_MICRO_BATCH][-1:]])
        for precision in precisions(self._work, self._pool):
            for sharding in dict.fromkeys((*shards[:2][-1:], *full[:1])):
                yield from (GreedyPoint(division, precision, sharding, micro) for micro in glanced)

    def _neighbours(self, spot: GreedyPoint) -> Iterator[GreedyPoint]:
        micros = micro_batches(self._work, spot.division)
        at = micros.index(spot.micro_batch)
        for micro in (*micros[max(0, at - 1) : at], *micros[at + 1 : at + 2]):
            yield replace(spot, micro_batch=micro)
        for sharding in shardings(self._work, self._pool, spot.division):
            if sharding != spot.sharding:
                yield replace(spot, sharding=sharding)
        for division in self._beside(spot.division):
            yield from self._moved(spot, division)

    def _moved(self, spot: GreedyPoint, division: Division) -> Iterator[GreedyPoint]:
        """The same inner choices in another division, or the nearest to them that it allows.

        Where sequences are cut otherwise, also as many tokens at a time as before.
        """
        micros = micro_batches(self._work, division)
        shards = shardings(self._work, self._pool, division)
        if micros and shards:
            alike = next((s for s in shards if s[0] == spot.sharding[0]), shards[-1])
            as_many = spot.micro_batch * division.cp / spot.division.cp
            for wanted in dict.fromkeys((spot.micro_batch, as_many)):
                micro = min(micros, key=lambda m: abs(m - wanted))
                yield GreedyPoint(division, spot.precision, alike, micro)

    def _beside(self, division: Division) -> Iterator[Division]:
        """One axis a degree up or down, or one up and another down."""
        key = astuple(division)[:AXES]
        singles = [(axis, step) for axis in range(AXES) for step in (-1, 1)]
        pairs = [(a, b) for a in singles for b in singles if a[0] != b[0] and a[1] > b[1]]
        for moves in (*((single,) for single in singles), *pairs):
            moved = self._step(key, moves)
            if moved in self._known:
                yield self._known[moved]

    def _step(self, key: tuple[int, ...], moves: tuple[tuple[int, int], ...]) -> tuple[int, ...] | None:
        changed = list(key)
        for axis, step in moves:
            values = self._values[axis]
            at = values.index(key[axis]) + step
            if not 0 <= at < len(values):
                return None
            changed[axis] = values[at]
        return tuple(changed)
