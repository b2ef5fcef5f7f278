"""The controller actor of a Ray cluster: reconciles what runs with the desired groups.

    desired groups (in Ray's own store) -> placement groups -> a member actor for each member -> its status

It runs on the head node, where Ray's store is. When it dies, Ray restarts it, and it reads the desired
groups; placement groups and actors are found by name. A group that grows gets further placement groups,
because Ray cannot change one; each is removed when the last of its members is gone.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import ray
from ray._private import state as ray_state
from ray.exceptions import RayError
from ray.experimental import internal_kv
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from windlass.cluster.backend import (
    REQUESTED,
    ClusterState,
    Group,
    GroupStatus,
    Member,
    Node,
    Resources,
    check,
    group_bytes,
    group_from,
    refuse_other,
)
from windlass.cluster.on_ray.member_actor import MemberActor, MemberReport
from windlass.spec.errors import InUse, NotFound, WindlassError
from windlass.spec.protocol.entrypoint import error_event
from windlass.spec.units import format_bytes

LOOK_EVERY_S = 0.2
FORCE_S = 5.0
"""In addition to the grace of a member; then its actor is killed in any case."""
A_LITTLE = 0.001
"""The part of a core for a member that requests nothing; Ray does not allow empty bundles."""
EXPLAIN_EVERY_S = 1.0
GONE, NOT_BEGUN = "DEAD", ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
"""States of an actor, as Ray names them."""


@dataclass
class ActorRecord:
    """A member actor, from the side of the controller."""

    handle: Any
    member: Member
    report: Any = None
    """Reference of the pending call."""
    ended: bool = False
    ending_s: float | None = None
    losses: int = 0
    """How often it was restarted on another node."""
    elsewhere: int = 0
    """Restarts of the process on nodes that are gone."""
    explained_s: float = 0.0


@dataclass
class ControlledGroup:
    """A group that is wanted, or is not gone yet."""

    group: Group
    stopping: bool = False
    placement_groups: list[tuple[int, int]] = field(default_factory=list)
    """First index and number of members of each placement group."""
    actors: dict[int, ActorRecord] = field(default_factory=dict)
    lost: dict[int, Member] = field(default_factory=dict)
    """Members whose node died and that are not to be restarted."""

    @property
    def count(self) -> int:
        return 0 if self.stopping else self.group.count

    @property
    def covered(self) -> int:
        return max((first + count for first, count in self.placement_groups), default=0)


class RayController:
    """The actor that every RayBackend object calls."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._lock = threading.RLock()
        self._entries: dict[str, ControlledGroup] = {}
        self._places: dict[str, PlacementGroup] = {}
        for key in internal_kv._internal_kv_list("", namespace=self._store):
            self._load(key.decode())
        threading.Thread(target=self._run, name="controller", daemon=True).start()

    def call(self, what: str, *args: Any) -> dict[str, Any]:
        """Execute one method of the backend; an error is returned as an error event."""
        verbs: dict[str, Callable[..., Any]] = {
            "launch": self._launch,
            "observe": self._observe,
            "stop": self._stop,
            "scale": self._scale,
            "survey": self._survey,
        }
        try:
            with self._lock:
                return {"reply": verbs[what](*args)}
        except WindlassError as error:
            return {"error": error_event(error)}

    def _launch(self, written: bytes) -> None:
        group = check(group_from(written))
        entry = self._entries.get(group.key)
        if entry is None:
            self._entries[group.key] = ControlledGroup(group)
        else:
            refuse_other(entry.group, group)
            self._refuse_stopping(entry)
            entry.group = group
        self._save(group.key)

    def _observe(self, key: str) -> GroupStatus | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        found = {index: actor.member for index, actor in entry.actors.items()} | entry.lost
        for index in range(entry.count):
            found.setdefault(index, Member(index, "pending", reason=REQUESTED))
        return GroupStatus(entry.group, tuple(found[index] for index in sorted(found)), entry.stopping)

    def _stop(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.stopping = True
            self._save(key)

    def _scale(self, key: str, count: int) -> None:
        entry = self._entries.get(key)
        if entry is None:
            raise NotFound(f"no group {key} on this Ray cluster")
        self._refuse_stopping(entry)
        entry.group = check(replace(entry.group, count=count))
        self._save(key)

    def _survey(self, tenant: str | None) -> ClusterState:
        keys = [key for key, entry in self._entries.items() if tenant in (None, entry.group.tenant)]
        found = [self._observe(key) for key in sorted(keys)]
        return ClusterState(nodes_of_ray(), tuple(status for status in found if status is not None))

    def _refuse_stopping(self, entry: ControlledGroup) -> None:
        if entry.stopping:
            raise InUse(f"group {entry.group.key} is being stopped", hint="wait until it is gone")

    def _run(self) -> None:
        """Reconcile all groups in a loop; failures, e.g. when Ray is busy, are retried."""
        while True:
            with self._lock:
                for key in list(self._entries):
                    try:
                        self._step(key, self._entries[key], time.time())
                    except Exception:  # noqa: BLE001  top of a thread that must not end
                        traceback.print_exc()
            time.sleep(LOOK_EVERY_S)

    def _step(self, key: str, entry: ControlledGroup, now_s: float) -> None:
        """Bring one group closer to its desired state; every part of it may be repeated."""
        self._place(key, entry)
        for index in range(entry.count):
            if index not in entry.actors and index not in entry.lost:
                entry.actors[index] = self._start_actor(entry, index, now_s)
        self._poll_actors(entry, now_s)
        for index, actor in list(entry.actors.items()):
            if index >= entry.count or actor.ending_s is not None:
                self._dismiss(entry, index, actor, now_s)
        self._clear(key, entry)

    def _place(self, key: str, entry: ControlledGroup) -> None:
        """Record a placement group for members that have none."""
        missing = entry.count - entry.covered
        if missing <= 0:
            return
        sizes = [missing] if entry.group.gang else [1] * missing
        for size in sizes:
            entry.placement_groups.append((entry.covered, size))
        self._save(key)

    def _start_actor(self, entry: ControlledGroup, index: int, now_s: float) -> ActorRecord:
        """Create the member actor, or find the existing one."""
        group = entry.group
        first, size = next(p for p in entry.placement_groups if p[0] <= index < p[0] + p[1])
        strategy = PlacementGroupSchedulingStrategy(self._placement_group(group, first, size), index - first)
        bundle = bundle_of(group.resources)
        handle = (
            ray.remote(MemberActor)
            .options(
                name=f"{group.key}#{index}",
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get("memory"),
                max_restarts=0 if group.restart.policy == "never" else -1,
                max_concurrency=2,
                scheduling_strategy=strategy,
            )
            .remote(group_bytes(replace(group, count=0)), index)
        )
        return ActorRecord(handle, Member(index, "pending", since_s=now_s, reason=REQUESTED))

    def _placement_group(self, group: Group, first: int, size: int) -> PlacementGroup:
        name = f"{self._namespace}:{group.key}#{first}"
        if name not in self._places:
            try:
                self._places[name] = get_placement_group(name)
            except ValueError:
                selectors = [dict(group.node_selector)] * size if group.node_selector else None
                self._places[name] = placement_group(
                    [bundle_of(group.resources)] * size,
                    strategy="SPREAD" if group.placement == "spread" else "PACK",
                    name=name,
                    lifetime="detached",
                    bundle_label_selector=selectors,
                )
        return self._places[name]

    def _poll_actors(self, entry: ControlledGroup, now_s: float) -> None:
        """Take the reports of actors and request the next ones; look up actors that do not answer."""
        for index, actor in list(entry.actors.items()):
            if actor.report is None:
                actor.report = actor.handle.look.remote()
            ready, _ = ray.wait([actor.report], timeout=0)
            if not ready:
                if actor.member.state == "pending" and now_s - actor.explained_s > EXPLAIN_EVERY_S:
                    actor.explained_s = now_s
                    self._explain(entry, actor)
                elif node_is_gone(actor.member.node):
                    self._on_actor_lost(entry, index, actor, now_s)
                continue
            report, actor.report = actor.report, None
            try:
                self._take(actor, ray.get(report))
            except RayError:
                self._on_actor_lost(entry, index, actor, now_s)

    def _take(self, actor: ActorRecord, report: MemberReport) -> None:
        member = report.member
        actor.ended = report.ended
        actor.member = replace(member, restarts=member.restarts + actor.losses + actor.elsewhere)

    def _on_actor_lost(self, entry: ControlledGroup, index: int, actor: ActorRecord, now_s: float) -> None:
        """An actor does not answer: Ray restarts it on another node, unless that is not wanted."""
        state = actor_state(actor.handle)
        before = actor.member
        if state == GONE:
            if actor.ending_s is not None or index >= entry.count:
                actor.ended = True
            else:
                reason = f"its machine {before.node} is gone"
                entry.lost[index] = replace(before, state="lost", since_s=now_s, reason=reason)
                del entry.actors[index]
                self._save(entry.group.key)
        elif before.state != "pending" and entry.group.restart.policy != "never":
            actor.losses, actor.elsewhere = actor.losses + 1, before.restarts - actor.losses
            reason = f"its machine {before.node} is gone; another node is requested"
            actor.member = replace(
                before, state="pending", restarts=before.restarts + 1, node="", since_s=now_s, reason=reason
            )

    def _explain(self, entry: ControlledGroup, actor: ActorRecord) -> None:
        """Set the reason why a member has no node yet."""
        group, index = entry.group, actor.member.index
        first, size = next(p for p in entry.placement_groups if p[0] <= index < p[0] + p[1])
        table = placement_group_table(self._placement_group(group, first, size))
        if table.get("state") in ("PENDING", "RESCHEDULING"):
            lost = actor.member.reason if actor.losses and "is gone" in actor.member.reason else ""
            before = f"{lost.partition(';')[0]}; " if lost else ""
            why = f"{before}no capacity: {requested_text(group.resources)}; {free_text()}"
            actor.member = replace(actor.member, reason=why)

    def _dismiss(self, entry: ControlledGroup, index: int, actor: ActorRecord, now_s: float) -> None:
        """Stop a member within its grace, then kill its actor."""
        if actor.ending_s is None:
            actor.ending_s = now_s
            actor.handle.end.remote()
        waits = actor_state(actor.handle) in NOT_BEGUN
        late = now_s > actor.ending_s + entry.group.grace_s + FORCE_S
        if actor.ended or waits or late:
            ray.kill(actor.handle, no_restart=True)
            del entry.actors[index]

    def _clear(self, key: str, entry: ControlledGroup) -> None:
        """Remove placement groups without members, and forget stopped groups."""
        for index in [index for index in entry.lost if index >= entry.count]:
            del entry.lost[index]
        empty = [
            (first, size)
            for first, size in entry.placement_groups
            if first >= entry.count and not any(first <= i < first + size for i in entry.actors)
        ]
        for first, size in empty:
            remove_placement_group(self._placement_group(entry.group, first, size))
            self._places.pop(f"{self._namespace}:{key}#{first}", None)
            entry.placement_groups.remove((first, size))
            self._save(key)
        if entry.stopping and not entry.placement_groups and not entry.actors:
            internal_kv._internal_kv_del(key, namespace=self._store)
            del self._entries[key]

    @property
    def _store(self) -> str:
        return f"windlass.{self._namespace}"

    def _save(self, key: str) -> None:
        entry = self._entries[key]
        written = {
            "group": msgspec.Raw(group_bytes(entry.group)),
            "stopping": entry.stopping,
            "placement_groups": entry.placement_groups,
            "lost": list(entry.lost.values()),
        }
        internal_kv._internal_kv_put(key, msgspec.json.encode(written), namespace=self._store)

    def _load(self, key: str) -> None:
        written = internal_kv._internal_kv_get(key, namespace=self._store)
        fields = msgspec.json.decode(written)
        group = group_from(msgspec.json.encode(fields["group"]))
        placement_groups = [(int(first), int(size)) for first, size in fields["placement_groups"]]
        lost = {member.index: member for member in msgspec.convert(fields["lost"], list[Member])}
        entry = self._entries[key] = ControlledGroup(
            group, bool(fields["stopping"]), placement_groups, lost=lost
        )
        for index in range(entry.covered):
            with contextlib.suppress(ValueError):  # no such actor
                handle = ray.get_actor(f"{key}#{index}", namespace=self._namespace)
                entry.actors[index] = ActorRecord(handle, Member(index, "pending", reason=REQUESTED))


def bundle_of(need: Resources) -> dict[str, float]:
    """Return the bundle that Ray reserves for one member."""
    bundle: dict[str, float] = {"CPU": need.cores if need.cores is not None else A_LITTLE}
    if need.memory_bytes is not None:
        bundle["memory"] = float(need.memory_bytes)
    if need.gpus:
        bundle["GPU"] = float(need.gpus)
    return bundle


def nodes_of_ray() -> tuple[Node, ...]:
    """Return the nodes of the cluster, including dead ones."""
    free = ray_state.available_resources_per_node()
    return tuple(
        Node(
            name=str(node["NodeName"]),
            alive=bool(node["Alive"]),
            address=str(node["NodeManagerAddress"]),
            total=_resources(node["Resources"]),
            free=_resources(free.get(node["NodeID"], {})),
            reason="" if node["Alive"] else "is gone",
            labels=dict(node.get("Labels") or {}),
        )
        for node in sorted(ray.nodes(), key=lambda n: (str(n["NodeName"]), not n["Alive"]))
    )


def node_is_gone(address: str) -> bool:
    found = [node for node in ray.nodes() if node["NodeManagerAddress"] == address]
    return bool(found) and not any(node["Alive"] for node in found)


def actor_state(handle: Any) -> str:
    """Return Ray's state of an actor, e.g. RESTARTING; DEAD when Ray does not know it."""
    return str(ray_state.actors(handle._actor_id.hex()).get("State", GONE))


def requested_text(need: Resources) -> str:
    amounts = [f"{need.cores or 0:g} cores"]
    if need.memory_bytes is not None:
        amounts.append(f"{format_bytes(need.memory_bytes)} of memory")
    if need.gpus:
        amounts.append(f"{need.gpus} GPUs")
    return f"{', '.join(amounts)} are requested"


def free_text() -> str:
    nodes = [node for node in nodes_of_ray() if node.alive]
    return "free are " + ", ".join(f"{node.free.cores or 0:g} cores at {node.name}" for node in nodes)


def _resources(amounts: dict[str, float]) -> Resources:
    return Resources(amounts.get("CPU", 0.0), int(amounts.get("memory", 0)), int(amounts.get("GPU", 0)))
