"""Samples the fleet every few minutes: use, waiting jobs, shares, and idle capacity that could be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from windlass.control.plane.job_cache import JobCache
from windlass.control.scheduler.capacity import Floats, count, place, vector
from windlass.control.scheduler.fair_share import dominant, held_by_tenant, times
from windlass.control.scheduler.snapshot import PendingJob
from windlass.lab.simulate.events import EPOCH_S
from windlass.lab.simulate.fleet import SimulatedFleet
from windlass.lab.simulate.usage import USEFUL, UsageIntegrals

EVERY_S = 300.0
GPUS = 2


@dataclass
class FleetSample:
    """One sample."""

    hour: float
    waiting: int
    running: int
    useful: float
    """Share of the GPUs that do useful work."""
    idle: float
    down: float
    shares: dict[str, float]
    wanting: frozenset[str]
    """Tenants with jobs of normal priority that wait for capacity, or run with fewer members than they could
    use."""


class Samples:
    """The samples, and the idle capacity that waiting jobs could have used."""

    def __init__(self, fleet: SimulatedFleet, tally: UsageIntegrals, book: JobCache) -> None:
        self.seen: list[FleetSample] = []
        self.in_vain: Floats = np.zeros(3)
        """Idle capacity for which a waiting job would have fit: resources times seconds."""
        self._fleet, self._tally, self._book = fleet, tally, book
        self._next_s = EPOCH_S + EVERY_S

    def take(self, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s += EVERY_S
        fleet, whole = self._fleet, self._fleet.whole
        held = held_by_tenant(self._book.placed.values())
        all_of_it = (float(whole[0]), float(whole[1]), float(whole[2]))
        waiting = list(self._book.waiting.values())
        self.in_vain += self._could_run(waiting) * EVERY_S
        gpus = max(1.0, float(whole[GPUS]))
        self.seen.append(
            FleetSample(
                (now_s - EPOCH_S) / 3600.0,
                len(waiting),
                len(self._book.placed),
                float(self._tally.rate[USEFUL, GPUS]) / gpus,
                float(fleet.idle[GPUS]) / gpus,
                float(fleet.down[GPUS]) / gpus,
                {tenant: dominant(room, all_of_it) for tenant, room in sorted(held.items())},
                self._wanting(waiting, now_s),
            )
        )

    def _wanting(self, waiting: list[PendingJob], now_s: float) -> frozenset[str]:
        late = [ask for ask in waiting if now_s - ask.submitted_s > EVERY_S]
        small = [each.job for each in self._book.placed.values() if each.members < each.job.members]
        return frozenset(ask.tenant for ask in (*late, *small) if ask.priority >= 0 and not ask.endless)

    def _could_run(self, waiting: list[PendingJob]) -> Floats:
        """Return the resources of waiting jobs that would fit, even if the capacity is reserved."""
        free, used = self._fleet.free.copy(), np.zeros(3)
        shapes = Counter((ask.fewest, vector(ask.need)) for ask in waiting)
        for fewest, each in sorted(shapes, reverse=True):
            for _ in range(shapes[fewest, each]):
                fits = count(free, each) * self._fleet.up
                if int(fits.sum()) < fewest:
                    break
                gang = place(fits, np.zeros(len(fits), dtype=bool), fewest, "spread")
                free[:, gang.rows] -= np.asarray(each)[:, None] * gang.each
                used += np.asarray(times(each, fewest))
        return used
