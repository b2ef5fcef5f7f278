"""The nodes: free resources, which are up, and what the cluster reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from windlass.cluster.backend import Node, Resources
from windlass.control.scheduler.capacity import Floats, Gang, Vector, count, place, vector
from windlass.control.scheduler.snapshot import MemberResources
from windlass.lab.simulate.scenario import Scenario
from windlass.lab.simulate.workload import machines_of, speeds
from windlass.spec.cluster import Placement

SLACK = 1e-3


class SimulatedFleet:
    """Columns over nodes. The real state changes at once; the reported state when the cluster detects it."""

    def __init__(self, scenario: Scenario) -> None:
        rooms, labels = _inventory(scenario)
        self.size = len(rooms)
        self.racks = -(-self.size // scenario.faults.rack)
        self._rack = scenario.faults.rack
        self.total: Floats = np.array([vector(room) for room in rooms]).T.copy()
        self.free = self.total.copy()
        self.up = np.ones(self.size, dtype=bool)
        self.speed = speeds(scenario.faults, self.size, scenario.seed)
        self.idle: Floats = self.total.sum(axis=1)
        """Free resources of nodes that are up; updated incrementally."""
        self.down: Floats = np.zeros(3)
        self.whole: Floats = self.total.sum(axis=1)
        self._nodes = [
            Node(f"n{row:05}", True, total=_resources(vector(room)), labels=labels[row])
            for row, room in enumerate(rooms)
        ]
        self._stale = set(range(self.size))
        self._shown: tuple[Node, ...] = ()

    def rows_of_rack(self, rack: int) -> range:
        return range(rack * self._rack, min(self.size, (rack + 1) * self._rack))

    def choose(
        self, need: Vector, members: int, placement: Placement, selector: Mapping[str, str]
    ) -> Gang | None:
        """Choose nodes that are up, best fit first, to keep whole nodes free."""
        fits = count(self.free, need) * self.up
        if selector:
            has = [all(n.labels.get(k) == v for k, v in selector.items()) for n in self._nodes]
            fits *= np.array(has)
        if int(fits.sum()) < members:
            return None
        return place(fits, (self.free[2] > 0) & (need[2] == 0), members, placement)

    def take(self, row: int, need: Vector) -> None:
        self._add(row, need, -1.0)
        assert (self.free[:, row] >= -SLACK).all(), f"node {row} is over-committed"

    def give(self, row: int, need: Vector) -> None:
        self._add(row, need, 1.0)
        assert (self.free[:, row] <= self.total[:, row] + SLACK).all(), f"node {row} released too much"

    def _add(self, row: int, need: Vector, sign: float) -> None:
        assert self.up[row]
        free, idle = self.free, self.idle
        for r in range(3):
            free[r, row] += sign * need[r]
            idle[r] += sign * need[r]
        self._stale.add(row)

    def fail(self, row: int) -> None:
        """A node fails with all that runs on it; the caller updates the affected groups."""
        self.up[row] = False
        self.idle -= self.free[:, row]
        self.down += self.total[:, row]
        self.free[:, row] = self.total[:, row]

    def mend(self, row: int) -> None:
        self.up[row] = True
        self.idle += self.free[:, row]
        self.down -= self.total[:, row]
        self._stale.add(row)

    def notice(self, row: int) -> None:
        """The cluster detects the state of a node."""
        self._stale.add(row)

    def name(self, row: int) -> str:
        return self._nodes[row].name

    def shown(self, unnoticed: Mapping[int, object]) -> tuple[Node, ...]:
        """Return the reported nodes; undetected failures are reported as before."""
        late = {row for row in self._stale if row in unnoticed}
        for row in self._stale - late:
            old = self._nodes[row]
            alive = bool(self.up[row])
            free = _resources(self.free[:, row].tolist()) if alive else Resources(0.0, 0, 0)
            reason = "" if alive else "does not answer"
            self._nodes[row] = Node(old.name, alive, "", old.total, free, reason, old.labels)
        if len(late) < len(self._stale):
            self._shown = tuple(self._nodes)
        self._stale = late
        return self._shown


def _inventory(scenario: Scenario) -> tuple[list[MemberResources], list[dict[str, str]]]:
    """Mix the kinds of nodes evenly over racks, as in fleets that grew over years."""
    kinds: list[str] = []
    for name, kind in scenario.machines.items():
        kinds += [name] * machines_of(kind, scenario.nodes)
    kinds = (kinds + [next(iter(scenario.machines))] * scenario.nodes)[: scenario.nodes]
    rack, rooms, labels = scenario.faults.rack, [], []
    order = sorted(range(len(kinds)), key=lambda i: (i * 7919) % len(kinds))
    for row, at in enumerate(order):
        rooms.append(scenario.machines[kinds[at]].total)
        labels.append({"type": kinds[at], "rack": f"r{row // rack:03}"})
    return rooms, labels


def _resources(room: Sequence[float]) -> Resources:
    return Resources(round(room[0], 6), round(room[1]), round(room[2]))
