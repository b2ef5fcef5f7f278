"""The leader's copy of the unfinished jobs: read once, then updated with what changes.

The cost of a step depends on what changed since the last one: pending jobs, running jobs and nodes that are
unchanged stay the same objects.
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
    """Entries by uid, by the key of their group and by TENANT/NAME."""

    def __init__(self) -> None:
        self.version = 0
        self.entries: dict[str, JobEntry] = {}
        self.by_group: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.waiting: dict[str, PendingJob] = {}
        self.placed: dict[str, RunningJob] = {}
        self.stopping: set[str] = set()
        """Queued entries whose owner wants them stopped."""
        self._seen: dict[str, GroupStatus] = {}

    def read(self, store: LeaderStore) -> set[str]:
        """Apply what any process wrote since the last call; return the uids of the changed jobs."""
        changed = store.changed(self.version)
        for entry in changed:
            self.version = max(self.version, entry.version)
            self.put(entry)
        return {entry.uid for entry in changed}

    def written(self, transitions: Sequence[Transition], version: int) -> None:
        """Apply what was just written; if others wrote too, `read` finds both."""
        for transition in transitions:
            self.put(transition.entry)
        if version == self.version + 1:
            self.version = version

    def put(self, entry: JobEntry) -> None:
        uid = entry.uid
        self.waiting.pop(uid, None)
        self.placed.pop(uid, None)
        self.stopping.discard(uid)
        if entry.over:
            self._forget(uid)
            return
        self.entries[uid] = entry
        self.by_group[entry.group_key], self.by_key[entry.key] = uid, uid
        if entry.phase in PLACED:
            self.placed[uid] = _placed(entry, self._seen.get(entry.group_key))
        elif entry.desired == "stop":
            self.stopping.add(uid)
        else:
            self.waiting[uid] = entry.pending_job()

    def see(self, status: GroupStatus) -> None:
        """Apply the observed status of a group."""
        key = status.group.key
        uid = self.by_group.get(key)
        if uid is None or self._seen.get(key) is status:
            return
        self._seen[key] = status
        if uid in self.placed:
            self.placed[uid] = _placed(self.entries[uid], status)

    def lose(self, key: str) -> None:
        """Apply that a group no longer exists."""
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
    """Nodes as columns for the scheduler; unchanged nodes are not converted again."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._columns = Columns(())

    def of(self, nodes: tuple[Node, ...]) -> Columns:
        before, self._nodes = self._nodes, nodes
        if before is not nodes and not self._follow(before, nodes):
            self._columns = Columns(_machine(node) for node in nodes if node.alive)
        return self._columns

    def _follow(self, before: tuple[Node, ...], nodes: tuple[Node, ...]) -> bool:
        """Apply what changed; False when the set or the order of the nodes changed."""
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
    """None in a node's resources means no limit."""
    return MemberResources(
        BOUNDLESS.cores if resources.cores is None else resources.cores,
        BOUNDLESS.memory_bytes if resources.memory_bytes is None else resources.memory_bytes,
        resources.gpus,
    )


def _placed(entry: JobEntry, status: GroupStatus | None) -> RunningJob:
    members = () if status is None else status.members
    return RunningJob(
        job=entry.pending_job(),
        members=entry.members,
        nodes=tuple(member.node for member in members if member.node and member.state != "lost"),
        since_s=entry.placed_s or entry.since_s,
        leaving=entry.phase in LEAVING,
    )
