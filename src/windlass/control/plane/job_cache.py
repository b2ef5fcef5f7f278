"""The jobs that are not over, as whoever leads knows them: read once, then kept up with what changes.

A step costs what changed since the last one, not what there is: asks, places and machines that are as they
were are the same objects as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_not

from windlass.cluster.backend import GroupStatus, Node, Resources
from windlass.control.plane.leader_store import LeaderStore, Transition
from windlass.control.plane.queued_job import LEAVING, PLACED, JobEntry
from windlass.control.scheduler.capacity import Columns
from windlass.control.scheduler.snapshot import MemberResources, PendingJob, RunningJob, SchedulableNode

BOUNDLESS = MemberResources(float(1 << 40), 1 << 60, 1 << 40)


class JobCache:
    """Entries by uid, by the key of their group and by the name that their owner gave."""

    def __init__(self) -> None:
        self.version = 0
        self.entries: dict[str, JobEntry] = {}
        self.by_group: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.waiting: dict[str, PendingJob] = {}
        self.placed: dict[str, RunningJob] = {}
        self.wishes: set[str] = set()
        """Entries whose owner may want something else than is seen: queued ones that are to stop."""
        self._seen: dict[str, GroupStatus] = {}

    def read(self, ledger: LeaderStore) -> set[str]:
        """Take in what was written since the last time, by whomever; return whose it is."""
        changed = ledger.changed(self.version)
        for entry in changed:
            self.version = max(self.version, entry.version)
            self.put(entry)
        return {entry.uid for entry in changed}

    def moved(self, moves: Sequence[Transition], version: int) -> None:
        """Take in what was just written; if others wrote too, `read` finds both."""
        for move in moves:
            self.put(move.entry)
        if version == self.version + 1:
            self.version = version

    def put(self, entry: JobEntry) -> None:
        uid = entry.uid
        self.waiting.pop(uid, None)
        self.placed.pop(uid, None)
        self.wishes.discard(uid)
        if entry.over:
            self._forget(uid)
            return
        self.entries[uid] = entry
        self.by_group[entry.group_key], self.by_key[entry.key] = uid, uid
        if entry.phase in PLACED:
            self.placed[uid] = _placed(entry, self._seen.get(entry.group_key))
        elif entry.wish == "stop":
            self.wishes.add(uid)
        else:
            self.waiting[uid] = entry.ask()

    def see(self, standing: GroupStatus) -> None:
        """Take in where the members of a group are."""
        key = standing.group.key
        uid = self.by_group.get(key)
        if uid is None or self._seen.get(key) is standing:
            return
        self._seen[key] = standing
        if uid in self.placed:
            self.placed[uid] = _placed(self.entries[uid], standing)

    def lose(self, key: str) -> None:
        """A group is not there any more."""
        if self._seen.pop(key, None) is not None and (uid := self.by_group.get(key)) in self.placed:
            self.placed[uid] = _placed(self.entries[uid], None)

    def _forget(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self.by_group.pop(entry.group_key, None)
            self._seen.pop(entry.group_key, None)
            if self.by_key.get(entry.key) == uid:
                del self.by_key[entry.key]


class NodeCache:
    """Nodes as machines that take work; one that is as it was is not made anew."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._columns = Columns(())

    def of(self, nodes: tuple[Node, ...]) -> Columns:
        before, self._nodes = self._nodes, nodes
        if before is not nodes and not self._follow(before, nodes):
            self._columns = Columns(_machine(node) for node in nodes if node.alive)
        return self._columns

    def _follow(self, before: tuple[Node, ...], nodes: tuple[Node, ...]) -> bool:
        """Take over what changed; False when they are other nodes, or in another order."""
        if len(before) != len(nodes):
            return False
        for row in compress(range(len(nodes)), map(is_not, before, nodes)):
            old, new = before[row], nodes[row]
            if old == new:
                continue
            if old.name != new.name or (new.alive and not self._columns.update(_machine(new))):
                return False
            if old.alive and not new.alive:
                self._columns.drop(new.name)
        return True


def _machine(node: Node) -> SchedulableNode:
    return SchedulableNode(node.name, _room(node.total), _room(node.free), node.labels)


def _room(resources: Resources) -> MemberResources:
    """None in a node's resources stands for no limit."""
    return MemberResources(
        BOUNDLESS.cores if resources.cores is None else resources.cores,
        BOUNDLESS.memory_bytes if resources.memory_bytes is None else resources.memory_bytes,
        resources.gpus,
    )


def _placed(entry: JobEntry, standing: GroupStatus | None) -> RunningJob:
    members = () if standing is None else standing.members
    return RunningJob(
        ask=entry.ask(),
        members=entry.members,
        nodes=tuple(member.node for member in members if member.node and member.state != "lost"),
        since_s=entry.placed_s or entry.since_s,
        leaving=entry.phase in LEAVING,
    )
