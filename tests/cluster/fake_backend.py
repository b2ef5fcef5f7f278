"""A cluster that is nothing but a table: for tests of those who use one.

It reads what a member shall do from its arguments, as tests/cluster/made_up_member.py does, and its time
passes whenever somebody looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
from windlass.cluster.process.restarts import decide
from windlass.spec.errors import InUse, NotFound

TICK_S = 0.5


@dataclass
class FakeCluster:
    """What outlives a backend object."""

    cores: float = 4.0
    now_s: float = 1000.0
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    again_s: dict[tuple[str, int], float] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def tick(self) -> None:
        self.now_s += TICK_S
        for key, standing in list(self.groups.items()):
            if standing.stopping:
                del self.groups[key]
                continue
            members = [self._step(standing, member) for member in standing.members]
            self.groups[key] = replace(standing, members=tuple(members))
        for key in sorted(self.groups, key=lambda k: -self.groups[k].group.priority):
            self._start(key)

    def kill(self, key: str, index: int) -> None:
        """End a member as the system would."""
        self._end(key, index, -9)

    def used(self) -> float:
        return sum(
            standing.group.resources.cores or 0.0
            for standing in self.groups.values()
            for member in standing.members
            if member.state == "running"
        )

    def _step(self, standing: GroupStatus, member: Member) -> Member:
        deed = standing.group.args
        if member.state != "running" or deed[0] == "sleep":
            return member
        started = self.starts[standing.group.key, member.index]
        if deed[0] == "exit":
            return self._ended(standing.group, member, int(deed[1]))
        return self._ended(standing.group, member, 1) if started <= int(deed[1]) else member

    def _end(self, key: str, index: int, code: int) -> None:
        standing = self.groups[key]
        members = list(standing.members)
        members[index] = self._ended(standing.group, members[index], code)
        self.groups[key] = replace(standing, members=tuple(members))

    def _ended(self, group: Group, member: Member, code: int) -> Member:
        ran_s = self.now_s - member.since_s
        after = decide(group.restart, code=code, restarts=member.restarts, ran_s=ran_s)
        self.again_s[group.key, member.index] = self.now_s + after.wait_s
        return replace(
            member,
            state=after.state,
            exit_code=code,
            restarts=member.restarts + (after.state == "pending"),
            since_s=self.now_s,
            reason=after.reason,
        )

    def _start(self, key: str) -> None:
        standing = self.groups[key]
        group, members = standing.group, list(standing.members)
        due = [
            m for m in members if m.state == "pending" and self.again_s.get((key, m.index), 0) <= self.now_s
        ]
        need = group.resources.cores or 0.0
        fits = int((self.cores - self.used()) // need) if need else len(due)
        if group.gang and fits < len(due):
            fits = 0
        for place, member in enumerate(due):
            if place < fits:
                begun = replace(member, state="running", since_s=self.now_s, node="fake", reason="")
                self.starts[key, member.index] = self.starts.get((key, member.index), 0) + 1
            else:
                begun = replace(member, reason=f"no room: {need:g} cores are requested")
            members[member.index] = begun
        self.groups[key] = replace(standing, members=tuple(members))


class FakeBackend:
    """A caller's view of a fake cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def launch(self, group: Group) -> None:
        there = self._cluster.groups.get(check(group).key)
        if there is None:
            self._cluster.groups[group.key] = GroupStatus(group, _fresh(0, group.count))
            return
        refuse_other(there.group, group)
        self.scale(group.key, group.count)

    def observe(self, key: str) -> GroupStatus | None:
        self._cluster.tick()
        return self._cluster.groups.get(key)

    def stop(self, key: str) -> None:
        there = self._cluster.groups.get(key)
        if there is not None:
            self._cluster.groups[key] = replace(there, stopping=True)

    def scale(self, key: str, count: int) -> None:
        there = self._cluster.groups.get(key)
        if there is None:
            raise NotFound(f"no group {key}")
        if there.stopping:
            raise InUse(f"group {key} is being stopped")
        group = check(replace(there.group, count=count))
        members = (*there.members[:count], *_fresh(len(there.members), count))
        self._cluster.groups[key] = GroupStatus(group, members)

    def survey(self, tenant: str | None = None) -> ClusterState:
        free = Resources(self._cluster.cores - self._cluster.used())
        node = Node("fake", True, total=Resources(self._cluster.cores), free=free)
        every = self._cluster.groups.values()
        return ClusterState((node,), tuple(s for s in every if tenant in (None, s.group.tenant)))


def _fresh(start: int, stop: int) -> tuple[Member, ...]:
    return tuple(Member(index, "pending", reason="was requested just now") for index in range(start, stop))
