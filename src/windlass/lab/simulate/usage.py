"""How the time of the nodes is spent, in core seconds, byte seconds and GPU seconds.

    useful     work that is not repeated
    lost       work that has to be repeated after a node failure
    slow       waiting for the slowest node of a gang
    starting   processes that start, load weights and a checkpoint, or regroup
    stalled    members that have a node and wait for one that has none
    saving     between a stop request and the end
    idle       unused
    down       failed nodes

The sum is the time of the whole fleet: nothing is counted twice or omitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windlass.control.scheduler.capacity import Floats, Vector
from windlass.lab.simulate.fleet import SimulatedFleet

KINDS = ("useful", "slow", "starting", "stalled", "saving", "lost", "idle", "down")
USEFUL, SLOW, STARTING, STALLED, SAVING, LOST, IDLE, DOWN = range(len(KINDS))


class UsageIntegrals:
    """Integrals over time. Callers that change what runs call `advance` first."""

    def __init__(self, fleet: SimulatedFleet, now_s: float) -> None:
        self._fleet, self._last_s = fleet, now_s
        self.rate: Floats = np.zeros((len(KINDS), 3))
        self.sum: Floats = np.zeros((len(KINDS), 3))

    def advance(self, now_s: float) -> None:
        passed_s = now_s - self._last_s
        if passed_s > 0:
            self.rate[IDLE], self.rate[DOWN] = self._fleet.idle, self._fleet.down
            self.sum += self.rate * passed_s
            self._last_s = now_s

    def change(self, need: Vector, members: Sequence[float], sign: float) -> None:
        """Start (1) or end (-1) members of a job, by kind of time."""
        for kind, number in enumerate(members):
            if number:
                for r in range(3):
                    self.rate[kind, r] += sign * number * need[r]

    def lose(self, need: Vector, member_seconds: float) -> None:
        """Move work from useful to lost."""
        room_s = np.asarray(need) * member_seconds
        self.sum[USEFUL] -= room_s
        self.sum[LOST] += room_s

    def check(self) -> None:
        """Check against independent counts that all resources are in exactly one kind."""
        held = self.rate[: LOST + 1].sum(axis=0)
        fleet = self._fleet
        _same(fleet.free[:, fleet.up].sum(axis=1), fleet.idle, fleet.whole, "idle")
        _same(held + fleet.idle + fleet.down, fleet.whole, fleet.whole, "sum")


def _same(one: Floats, other: Floats, whole: Floats, what: str) -> None:
    error = np.abs(one - other) / np.maximum(whole, 1.0)
    assert (error < 1e-6).all(), f"inconsistent {what} of the fleet: {one} and {other}"
