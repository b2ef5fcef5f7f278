"""What to do so that what runs becomes what is wanted. Pure: the time is an argument.

A replica too many is drained first: it gets no new requests and finishes those that it has, for so long as
MAX_DRAIN_S; only then, and when all gateways know, it is stopped. One that still loads is stopped at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from windlass.spec.protocol.routing import Route, RoutedModel, RoutedReplica, Routing, State
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.state import RunningReplica

MIN_DRAIN_S = 1.0
"""From when all gateways know that a replica drains: so long a request may be made ready that was sent to it
before. Until then, nothing under way there means nothing."""
MAX_DRAIN_S = 120.0
SHORT_LIFE_S = 5.0
FREE_DEATHS = 2
MAX_DELAY_S = 10.0
MAX_FAILED_STARTS = 5
SILENT_S = 5.0
SUSPECTED_SILENT_S = 0.75

STATES: Mapping[str, State] = {"ready": "ready", "unwell": "unwell", "draining": "draining"}
LEAVING_ORDER = ("starting", "unwell", "ready")


@dataclass(frozen=True)
class Action:
    """Start a replica of a version, or drain or stop a replica."""

    verb: Literal["start", "drain", "stop"]
    what: str
    why: str = ""


def reconcile(
    wanted: DesiredService, replicas: Sequence[RunningReplica], now: float, *, held: Collection[str] = ()
) -> list[Action]:
    """Return what to do now; no replica is started of the versions that are held back."""
    actions: list[Action] = []
    for group in wanted.groups:
        staying = [each for each in replicas if each.version == group.version and each.phase in LEAVING_ORDER]
        missing = group.replicas - len(staying)
        if group.version not in held:
            actions += [Action("start", group.version)] * missing
        actions += [_leave(each, "fewer are wanted") for each in _min_useful(staying, -missing)]
    known = {group.version for group in wanted.groups}
    for each in replicas:
        if each.version not in known and each.phase in LEAVING_ORDER:
            actions.append(_leave(each, f"{each.version} is wanted no more"))
        elif each.phase == "draining" and is_drained(each, now):
            actions.append(Action("stop", each.name, each.why))
    return actions


def is_drained(replica: RunningReplica, now: float) -> bool:
    """Tell whether a replica that drains can be stopped: it is done, or took too long."""
    if now - replica.since >= MAX_DRAIN_S:
        return True
    known = replica.shunned_since
    return known is not None and now - known >= MIN_DRAIN_S and not replica.in_flight


def is_frozen(silent_s: float, *, suspected: bool) -> bool:
    """Tell whether a replica that says nothing is beyond hope; a gateway's doubt makes that sooner."""
    return silent_s >= (SUSPECTED_SILENT_S if suspected else SILENT_S)


@dataclass(frozen=True)
class ReplicaLife:
    """How one replica fared: how long it was ready, or None if it ended before that."""

    ended_at: float
    ready_s: float | None


def restart_delay_s(lives: Sequence[ReplicaLife]) -> float:
    """Return how long to wait after the last end of a version; the more short lives in a row, the longer."""
    short = 0
    for life in reversed(lives):
        if life.ready_s is not None and life.ready_s >= SHORT_LIFE_S:
            break
        short += 1
    if short <= FREE_DEATHS:
        return 0.0
    return float(min(MAX_DELAY_S, 0.2 * 2 ** (short - FREE_DEATHS)))


def is_hopeless(lives: Sequence[ReplicaLife]) -> bool:
    """Tell whether a version ended so often before it was ready that it will never be."""
    last = lives[-MAX_FAILED_STARTS:]
    return len(last) == MAX_FAILED_STARTS and all(life.ready_s is None for life in last)


def routing_of(wanted: DesiredService, replicas: Sequence[RunningReplica], *, brownout: int = 0) -> Routing:
    """Return what gateways are told; the revision is left to the teller."""
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


def _min_useful(replicas: Sequence[RunningReplica], count: int) -> list[RunningReplica]:
    """Return those to go first: what still loads, what is unwell, then the youngest, whose cache is cold."""
    ordered = sorted(replicas, key=lambda each: (LEAVING_ORDER.index(each.phase), -each.started_at))
    return ordered[: max(0, count)]
