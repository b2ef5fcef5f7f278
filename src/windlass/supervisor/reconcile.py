"""The actions that bring what runs to what is desired. Pure: the time is an argument.

A surplus replica is drained first: it gets no new requests and finishes those that it has, for MAX_DRAIN_S
at most. It is stopped when it is done and all gateways know that it drains. A loading one is stopped at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from windlass.spec.protocol.backoff import Backoff
from windlass.spec.protocol.routing import Route, RoutedModel, RoutedReplica, Routing, State
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.state import RunningReplica

MIN_DRAIN_S = 1.0
"""Time for requests that were on their way when the last gateway learned that the replica drains; until then
an idle replica may still get one."""
MAX_DRAIN_S = 120.0
SHORT_LIFE_S = 5.0
FREE_DEATHS = 2
RESTARTS = Backoff(first_s=0.4, max_s=10.0)
"""After FREE_DEATHS short lives in a row."""
MAX_FAILED_STARTS = 5
SILENT_S = 5.0
SUSPECTED_SILENT_S = 0.75

STATES: Mapping[str, State] = {"ready": "ready", "unhealthy": "unhealthy", "draining": "draining"}
STOP_ORDER = ("starting", "unhealthy", "ready")


@dataclass(frozen=True)
class Action:
    """Start a replica of a version, or drain or stop a replica."""

    verb: Literal["start", "drain", "stop"]
    what: str
    why: str = ""


def reconcile(
    wanted: DesiredService, replicas: Sequence[RunningReplica], now: float, *, held: Collection[str] = ()
) -> list[Action]:
    """Return what to do now; no replica is started of the versions in `held`."""
    actions: list[Action] = []
    for group in wanted.groups:
        staying = [
            replica
            for replica in replicas
            if replica.version == group.version and replica.phase in STOP_ORDER
        ]
        missing = group.replicas - len(staying)
        if group.version not in held:
            actions += [Action("start", group.version)] * missing
        actions += [
            _leave(replica, "fewer replicas are needed") for replica in _first_to_stop(staying, -missing)
        ]
    known = {group.version for group in wanted.groups}
    for replica in replicas:
        if replica.version not in known and replica.phase in STOP_ORDER:
            actions.append(_leave(replica, f"{replica.version} is no longer needed"))
        elif replica.phase == "draining" and is_drained(replica, now):
            actions.append(Action("stop", replica.name, replica.why))
    return actions


def is_drained(replica: RunningReplica, now: float) -> bool:
    """Whether a draining replica can be stopped: it is done, or took too long."""
    if now - replica.since >= MAX_DRAIN_S:
        return True
    known = replica.drain_known_at
    return known is not None and now - known >= MIN_DRAIN_S and not replica.in_flight


def is_frozen(silent_s: float, *, suspected: bool) -> bool:
    """Whether a silent replica counts as frozen; sooner if a gateway suspects it."""
    return silent_s >= (SUSPECTED_SILENT_S if suspected else SILENT_S)


@dataclass(frozen=True)
class ReplicaLife:
    """When a replica ended, and how long it had been ready; None if it never was."""

    ended_at: float
    ready_s: float | None


def restart_delay_s(lives: Sequence[ReplicaLife]) -> float:
    """Return the restart back-off of a version: it grows with the number of short lives in a row."""
    short = 0
    for life in reversed(lives):
        if life.ready_s is not None and life.ready_s >= SHORT_LIFE_S:
            break
        short += 1
    return RESTARTS.wait_s(short - FREE_DEATHS)


def is_hopeless(lives: Sequence[ReplicaLife]) -> bool:
    """Whether the last MAX_FAILED_STARTS replicas of a version all ended before they were ready."""
    last = lives[-MAX_FAILED_STARTS:]
    return len(last) == MAX_FAILED_STARTS and all(life.ready_s is None for life in last)


def routing_of(wanted: DesiredService, replicas: Sequence[RunningReplica], *, brownout: int = 0) -> Routing:
    """Return the routing table for the gateways; the caller sets the revision."""
    items = {item.name: item for group in wanted.groups for item in group.items}
    models = {group.version: [item.name for item in group.items] for group in wanted.groups}
    return Routing(
        0,
        [
            RoutedModel(item.name, str(item.model), _names(item), list(item.adapters))
            for item in items.values()
        ],
        [
            RoutedReplica(
                each.name, str(each.socket), models.get(each.version, [each.version]), STATES[each.phase]
            )
            for each in replicas
            if each.phase in STATES
        ],
        {bare: _route(wanted, bare) for bare in dict.fromkeys(item.bare for item in items.values())},
        brownout,
    )


def _route(wanted: DesiredService, bare: str) -> Route:
    groups: list[tuple[str, ReplicaGroup]] = [
        (item.name, group) for group in wanted.groups for item in group.items if item.bare == bare
    ]
    standby = [name for name in wanted.standby if name.partition("@")[0] == bare]
    return Route(
        {name: group.weight for name, group in groups if group.weight > 0},
        {name: group.shadow for name, group in groups if group.shadow > 0},
        [name for name in standby if name in {name for name, _ in groups}],
    )


def _names(item: Item) -> list[str]:
    return [alias if "@" in alias else f"{item.bare}@{alias}" for alias in item.aliases]


def _leave(replica: RunningReplica, why: str) -> Action:
    return Action("stop" if replica.phase == "starting" else "drain", replica.name, why)


def _first_to_stop(replicas: Sequence[RunningReplica], count: int) -> list[RunningReplica]:
    """Return `count` replicas to stop: loading ones first, then unhealthy, then the youngest (cold cache)."""
    ordered = sorted(replicas, key=lambda each: (STOP_ORDER.index(each.phase), -each.started_at))
    return ordered[: max(0, count)]
