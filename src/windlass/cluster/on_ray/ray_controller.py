"""The one actor of a Ray cluster that knows which groups are wanted, and keeps what runs equal to it.

    what is wanted (in Ray's own store) -> placement groups -> a seat for every member -> how each stands

It stays on the head, where Ray's store is. When it dies Ray starts it again, and it reads what is wanted;
everything else has a name by which it is found. A group that grows gets further placement groups, because
Ray cannot change one: a tranche each, which goes when the last of its members does.
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
    ASKED,
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
"""Beyond the grace of a member, after which its seat is ended whatever it says."""
A_LITTLE = 0.001
"""Of a core: what a bundle has whose member asks for nothing; Ray knows no empty one."""
EXPLAIN_EVERY_S = 1.0
GONE, NOT_BEGUN = "DEAD", ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
"""States of an actor, in Ray's words."""


@dataclass
class ActorRecord:
    """A seat as the steward sees it."""

    handle: Any
    member: Member
    asked: Any = None
    ended: bool = False
    ending_s: float | None = None
    losses: int = 0
    """How often it had to be started on another node."""
    elsewhere: int = 0
    """Restarts of the process that happened on nodes which are gone."""
    explained_s: float = 0.0


@dataclass
class ControlledGroup:
    """A group that is wanted, or not gone yet."""

    group: Group
    stopping: bool = False
    tranches: list[tuple[int, int]] = field(default_factory=list)
    """First index and number of members of each placement group."""
    chairs: dict[int, ActorRecord] = field(default_factory=dict)
    lost: dict[int, Member] = field(default_factory=dict)
    """Members whose node died and that are not to be started again."""

    @property
    def count(self) -> int:
        return 0 if self.stopping else self.group.count

    @property
    def covered(self) -> int:
        return max((first + count for first, count in self.tranches), default=0)


class RayController:
    """What every backend object asks."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._lock = threading.RLock()
        self._entries: dict[str, ControlledGroup] = {}
        self._places: dict[str, PlacementGroup] = {}
        for key in internal_kv._internal_kv_list("", namespace=self._store):
            self._load(key.decode())
        threading.Thread(target=self._run, name="steward", daemon=True).start()

    def ask(self, what: str, *args: Any) -> dict[str, Any]:
        """Do one of the verbs of a backend; an error is told, as processes of ours do it."""
        verbs: dict[str, Callable[..., Any]] = {
            "launch": self._launch,
            "observe": self._observe,
            "stop": self._stop,
            "scale": self._scale,
            "survey": self._survey,
        }
        try:
            with self._lock:
                return {"told": verbs[what](*args)}
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
        found = {index: chair.member for index, chair in entry.chairs.items()} | entry.lost
        for index in range(entry.count):
            found.setdefault(index, Member(index, "pending", reason=ASKED))
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
        return ClusterState(nodes_of_ray(), tuple(standing for standing in found if standing is not None))

    def _refuse_stopping(self, entry: ControlledGroup) -> None:
        if entry.stopping:
            raise InUse(f"group {entry.group.key} is being stopped", hint="wait until it is gone")

    def _run(self) -> None:
        """Keep everything, for ever: what fails once, as when Ray is busy, is tried again."""
        while True:
            with self._lock:
                for key in list(self._entries):
                    try:
                        self._step(key, self._entries[key], time.time())
                    except Exception:  # noqa: BLE001  the door of a thread that must not end
                        traceback.print_exc()
            time.sleep(LOOK_EVERY_S)

    def _step(self, key: str, entry: ControlledGroup, now_s: float) -> None:
        """Bring one group a step nearer to what is wanted; every part of it may be repeated."""
        self._place(key, entry)
        for index in range(entry.count):
            if index not in entry.chairs and index not in entry.lost:
                entry.chairs[index] = self._seated(entry, index, now_s)
        self._hear(entry, now_s)
        for index, chair in list(entry.chairs.items()):
            if index >= entry.count or chair.ending_s is not None:
                self._dismiss(entry, index, chair, now_s)
        self._clear(key, entry)

    def _place(self, key: str, entry: ControlledGroup) -> None:
        """Have a bundle for every member."""
        missing = entry.count - entry.covered
        if missing <= 0:
            return
        sizes = [missing] if entry.group.gang else [1] * missing
        for size in sizes:
            entry.tranches.append((entry.covered, size))
        self._save(key)

    def _seated(self, entry: ControlledGroup, index: int, now_s: float) -> ActorRecord:
        """Ask Ray for the seat, or find the one that is there."""
        group = entry.group
        first, size = next(t for t in entry.tranches if t[0] <= index < t[0] + t[1])
        strategy = PlacementGroupSchedulingStrategy(self._tranche(group, first, size), index - first)
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
        return ActorRecord(handle, Member(index, "pending", since_s=now_s, reason=ASKED))

    def _tranche(self, group: Group, first: int, size: int) -> PlacementGroup:
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

    def _hear(self, entry: ControlledGroup, now_s: float) -> None:
        """Take what seats have told, and ask again; who does not answer is looked up."""
        for index, chair in list(entry.chairs.items()):
            if chair.asked is None:
                chair.asked = chair.handle.look.remote()
            ready, _ = ray.wait([chair.asked], timeout=0)
            if not ready:
                if chair.member.state == "pending" and now_s - chair.explained_s > EXPLAIN_EVERY_S:
                    chair.explained_s = now_s
                    self._explain(entry, chair)
                elif node_is_gone(chair.member.node):
                    self._mourn(entry, index, chair, now_s)
                continue
            asked, chair.asked = chair.asked, None
            try:
                self._take(chair, ray.get(asked))
            except RayError:
                self._mourn(entry, index, chair, now_s)

    def _take(self, chair: ActorRecord, told: MemberReport) -> None:
        member = told.member
        chair.ended = told.ended
        chair.member = replace(member, restarts=member.restarts + chair.losses + chair.elsewhere)

    def _mourn(self, entry: ControlledGroup, index: int, chair: ActorRecord, now_s: float) -> None:
        """A seat does not answer: Ray starts it elsewhere, unless that is not wanted."""
        state = actor_state(chair.handle)
        before = chair.member
        if state == GONE:
            if chair.ending_s is not None or index >= entry.count:
                chair.ended = True
            else:
                reason = f"its machine {before.node} is gone"
                entry.lost[index] = replace(before, state="lost", since_s=now_s, reason=reason)
                del entry.chairs[index]
                self._save(entry.group.key)
        elif before.state != "pending" and entry.group.restart.policy != "never":
            chair.losses, chair.elsewhere = chair.losses + 1, before.restarts - chair.losses
            reason = f"its machine {before.node} is gone; another place is asked for"
            chair.member = replace(
                before, state="pending", restarts=before.restarts + 1, node="", since_s=now_s, reason=reason
            )

    def _explain(self, entry: ControlledGroup, chair: ActorRecord) -> None:
        """Say why a member has no place yet."""
        group, index = entry.group, chair.member.index
        first, size = next(t for t in entry.tranches if t[0] <= index < t[0] + t[1])
        table = placement_group_table(self._tranche(group, first, size))
        if table.get("state") in ("PENDING", "RESCHEDULING"):
            lost = chair.member.reason if chair.losses and "is gone" in chair.member.reason else ""
            before = f"{lost.partition(';')[0]}; " if lost else ""
            why = f"{before}no room for it: {asked_for(group.resources)}; {free_in_words()}"
            chair.member = replace(chair.member, reason=why)

    def _dismiss(self, entry: ControlledGroup, index: int, chair: ActorRecord, now_s: float) -> None:
        """Let a member end in its own time, then its seat."""
        if chair.ending_s is None:
            chair.ending_s = now_s
            chair.handle.end.remote()
        waits = actor_state(chair.handle) in NOT_BEGUN
        late = now_s > chair.ending_s + entry.group.grace_s + FORCE_S
        if chair.ended or waits or late:
            ray.kill(chair.handle, no_restart=True)
            del entry.chairs[index]

    def _clear(self, key: str, entry: ControlledGroup) -> None:
        """Give back placement groups that nobody sits in, and forget what is over."""
        for index in [index for index in entry.lost if index >= entry.count]:
            del entry.lost[index]
        empty = [
            (first, size)
            for first, size in entry.tranches
            if first >= entry.count and not any(first <= i < first + size for i in entry.chairs)
        ]
        for first, size in empty:
            remove_placement_group(self._tranche(entry.group, first, size))
            self._places.pop(f"{self._namespace}:{key}#{first}", None)
            entry.tranches.remove((first, size))
            self._save(key)
        if entry.stopping and not entry.tranches and not entry.chairs:
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
            "tranches": entry.tranches,
            "lost": list(entry.lost.values()),
        }
        internal_kv._internal_kv_put(key, msgspec.json.encode(written), namespace=self._store)

    def _load(self, key: str) -> None:
        written = internal_kv._internal_kv_get(key, namespace=self._store)
        told = msgspec.json.decode(written)
        group = group_from(msgspec.json.encode(told["group"]))
        tranches = [(int(first), int(size)) for first, size in told["tranches"]]
        lost = {member.index: member for member in msgspec.convert(told["lost"], list[Member])}
        entry = self._entries[key] = ControlledGroup(group, bool(told["stopping"]), tranches, lost=lost)
        for index in range(entry.covered):
            with contextlib.suppress(ValueError):  # no such actor
                handle = ray.get_actor(f"{key}#{index}", namespace=self._namespace)
                entry.chairs[index] = ActorRecord(handle, Member(index, "pending", reason=ASKED))


def bundle_of(need: Resources) -> dict[str, float]:
    """Return what Ray sets aside for one member."""
    bundle: dict[str, float] = {"CPU": need.cores if need.cores is not None else A_LITTLE}
    if need.memory_bytes is not None:
        bundle["memory"] = float(need.memory_bytes)
    if need.gpus:
        bundle["GPU"] = float(need.gpus)
    return bundle


def nodes_of_ray() -> tuple[Node, ...]:
    """Return the machines of the cluster, those that are gone too."""
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
    """Return the state of an actor in Ray's own words, e.g. RESTARTING; DEAD when Ray forgot it."""
    return str(ray_state.actors(handle._actor_id.hex()).get("State", GONE))


def asked_for(need: Resources) -> str:
    told = [f"{need.cores or 0:g} cores"]
    if need.memory_bytes is not None:
        told.append(f"{format_bytes(need.memory_bytes)} of memory")
    if need.gpus:
        told.append(f"{need.gpus} GPUs")
    return f"{', '.join(told)} are asked for"


def free_in_words() -> str:
    nodes = [node for node in nodes_of_ray() if node.alive]
    return "free are " + ", ".join(f"{node.free.cores or 0:g} cores at {node.name}" for node in nodes)


def _resources(told: dict[str, float]) -> Resources:
    return Resources(told.get("CPU", 0.0), int(told.get("memory", 0)), int(told.get("GPU", 0)))
