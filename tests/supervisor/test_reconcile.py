"""From what is wanted and what runs to what is done: pure, so every case can be tried."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.reconcile import (
    MAX_DRAIN_S,
    MAX_FAILED_STARTS,
    MIN_DRAIN_S,
    Action,
    ReplicaLife,
    is_frozen,
    is_hopeless,
    reconcile,
    restart_delay_s,
    routing_of,
)
from windlass.supervisor.state import RunningReplica

PHASES = ("starting", "ready", "unhealthy", "draining")


def group(version: str, replicas: int = 1, **more: Any) -> ReplicaGroup:
    return ReplicaGroup((Item(version, Path("/m")),), replicas, **more)


def running(name: str, version: str = "a@1", phase: Any = "ready", **more: Any) -> RunningReplica:
    given: dict[str, Any] = {"since": 0.0, "started_at": 0.0} | more
    return RunningReplica(name, version, Path("/s"), 1, phase, **given)


def test_what_is_missing_is_started_and_what_is_held_back_is_not() -> None:
    wanted = DesiredService((group("a@1", 2), group("a@2", 1)))
    assert reconcile(wanted, [running("x")], 0.0) == [Action("start", "a@1"), Action("start", "a@2")]
    assert reconcile(wanted, [running("x")], 0.0, held={"a@2"}) == [Action("start", "a@1")]


def test_of_too_many_what_still_loads_goes_first_then_what_is_unhealthy_then_the_youngest() -> None:
    there = [
        running("old", started_at=1.0),
        running("young", started_at=9.0),
        running("ill", phase="unhealthy"),
        running("loading", phase="starting"),
    ]
    for count, gone in ((3, ["loading"]), (2, ["loading", "ill"]), (1, ["loading", "ill", "young"])):
        actions = reconcile(DesiredService((group("a@1", count),)), there, 10.0)
        assert [action.what for action in actions] == gone
    assert [action.verb for action in actions] == ["stop", "drain", "drain"]


def test_a_replica_is_stopped_once_it_has_drained_or_took_too_long() -> None:
    wanted = DesiredService((group("a@2", 0),))
    there = [
        running("idle", phase="draining", drain_known_at=5.0),
        running("busy", phase="draining", drain_known_at=5.0, in_flight=3),
        running("not known to all", phase="draining"),
    ]
    assert reconcile(wanted, there, 5.0 + MIN_DRAIN_S / 2) == []
    assert [action.what for action in reconcile(wanted, there, 5.0 + MIN_DRAIN_S)] == ["idle"]
    assert [action.what for action in reconcile(wanted, there, MAX_DRAIN_S)] == [each.name for each in there]


@given(
    st.lists(st.tuples(st.sampled_from(["a@1", "a@2", "a@3"]), st.sampled_from(PHASES))),
    st.dictionaries(st.sampled_from(["a@1", "a@2"]), st.integers(0, 4)),
)
def test_doing_what_was_decided_leaves_nothing_to_do(
    there: list[tuple[str, str]], counts: dict[str, int]
) -> None:
    wanted = DesiredService(tuple(group(version, count) for version, count in counts.items()))
    replicas = [running(str(number), *each) for number, each in enumerate(there)]
    after = {each.name: each for each in replicas}
    for number, action in enumerate(reconcile(wanted, replicas, 0.0)):
        if action.verb == "start":
            after[f"new{number}"] = running(f"new{number}", action.what, "starting")
        elif action.verb == "stop":
            del after[action.what]
        else:
            after[action.what] = running(action.what, after[action.what].version, "draining")
    staying = Counter(each.version for each in after.values() if each.phase != "draining")
    assert staying == Counter({version: count for version, count in counts.items() if count})
    assert reconcile(wanted, list(after.values()), 0.0) == []


def test_a_version_is_restarted_at_once_and_later_the_more_often_it_ends_young() -> None:
    long, short = ReplicaLife(0.0, 60.0), ReplicaLife(0.0, 0.5)
    assert restart_delay_s([short, short]) == 0.0
    delays = [restart_delay_s([long, *[short] * count]) for count in range(3, 12)]
    assert delays == sorted(delays)
    assert 0 < delays[0] < delays[-1] == 10.0
    assert restart_delay_s([*[short] * 9, long]) == 0.0


def test_a_version_that_was_ready_once_is_never_hopeless() -> None:
    never = ReplicaLife(0.0, None)
    assert is_hopeless([never] * MAX_FAILED_STARTS)
    assert not is_hopeless([never] * (MAX_FAILED_STARTS - 1))
    assert not is_hopeless([ReplicaLife(0.0, 0.1), *[never] * (MAX_FAILED_STARTS - 1)])


def test_a_doubt_makes_the_patience_with_a_silent_replica_shorter() -> None:
    assert not is_frozen(1.0, suspected=False)
    assert is_frozen(1.0, suspected=True)
    assert is_frozen(10.0, suspected=False)


def test_gateways_get_versions_by_weight_and_only_replicas_that_serve() -> None:
    aliased = ReplicaGroup((Item("a@1", Path("/m1"), ("prod",), {"poet": Path("/p")}),), 2, weight=0.9)
    wanted = DesiredService(
        (aliased, group("a@2", weight=0.1), group("a@3", weight=0.0, shadow=0.5)), ("a@3",)
    )
    routing = routing_of(
        wanted, [running("x"), running("y", phase="starting"), running("z", "a@2", "draining")]
    )
    assert [(each.name, each.models, each.state) for each in routing.replicas] == [
        ("x", ["a@1"], "ready"),
        ("z", ["a@2"], "draining"),
    ]
    assert routing.models[0].names == ["a@prod"]
    assert routing.models[0].adapters == ["poet"]
    (route,) = routing.routes.values()
    assert (route.weights, route.shadow, route.standby) == ({"a@1": 0.9, "a@2": 0.1}, {"a@3": 0.5}, ["a@3"])
