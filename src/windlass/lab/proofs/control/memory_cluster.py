"""An in-memory cluster: jobs run for as long as their argument says.

It implements the backend protocol and starts no process, so that a benchmark measures the control plane.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace

from windlass.cluster.backend import (
    ClusterState,
    Group,
    GroupStatus,
    Member,
    Node,
    Resources,
    check,
    refuse_other,
)
from windlass.spec.errors import InUse, NotFound


class TableBackend:
    """Equal nodes; members are placed on the node with the most free cores."""

    def __init__(self, nodes: int, cores: float, clock: Callable[[], float]) -> None:
        self._clock, self._cores = clock, cores
        self._free = {f"node{number:05d}": cores for number in range(nodes)}
        self._groups: dict[str, GroupStatus] = {}
        self._ends: list[tuple[float, str]] = []
        self.ended: dict[str, int] = {}
        """How often each group has ended."""

    def launch(self, group: Group) -> None:
        there = self._groups.get(check(group).key)
        if there is not None:
            refuse_other(there.group, group)
            if there.stopping:
                raise InUse(f"group {group.key} is being stopped")
            return
        need = group.resources.cores or 0.0
        roomiest = heapq.nlargest(group.count, self._free, key=self._free.__getitem__)
        members = []
        for index, name in enumerate(roomiest):
            self._free[name] -= need
            members.append(Member(index, "running", node=name, since_s=self._clock()))
        self._groups[group.key] = GroupStatus(group, tuple(members))
        self._ends.append((self._clock() + float(group.args[0]), group.key))

    def observe(self, key: str) -> GroupStatus | None:
        return self._groups.get(key)

    def stop(self, key: str) -> None:
        standing = self._groups.pop(key, None)
        if standing is not None and not standing.over:
            self._leave(standing)

    def scale(self, key: str, count: int) -> None:
        raise NotFound(f"group {key} does not change")

    def survey(self, tenant: str | None = None) -> ClusterState:
        self._pass()
        total = Resources(self._cores, 1 << 40)
        nodes = tuple(
            Node(name, alive=True, total=total, free=Resources(free, 1 << 40))
            for name, free in self._free.items()
        )
        every = self._groups.values()
        return ClusterState(nodes, tuple(s for s in every if tenant in (None, s.group.tenant)))

    def _pass(self) -> None:
        """End the groups whose time is over."""
        now_s = self._clock()
        due = [key for end_s, key in self._ends if end_s <= now_s]
        self._ends = [each for each in self._ends if each[0] > now_s]
        for key in due:
            standing = self._groups.get(key)
            if standing is not None:
                self._leave(standing)
                members = tuple(replace(m, state="done", since_s=now_s) for m in standing.members)
                self._groups[key] = replace(standing, members=members)
                self.ended[key] = self.ended.get(key, 0) + 1

    def _leave(self, standing: GroupStatus) -> None:
        for member in standing.members:
            self._free[member.node] += standing.group.resources.cores or 0.0
