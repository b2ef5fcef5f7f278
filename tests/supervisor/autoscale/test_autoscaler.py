"""From what gateways tell to what is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.spec.protocol.routing import AnswerOutcome, VersionDemand
from windlass.spec.scale import Scale
from windlass.supervisor.autoscale.autoscaler import Autoscale
from windlass.supervisor.autoscale.capacity import ReplicaNeeds, need_of
from windlass.supervisor.autoscale.signals import WINDOW_S, AnswerWindow
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.state import NOTHING, RunningReplica, ServiceState

SCALE = Scale(max_replicas=8, memory=1 << 20)


class Room:
    """So many replicas fit in all."""

    def __init__(self, most: int = 100) -> None:
        self.most = most

    def room(self, need: ReplicaNeeds, running: int) -> int:
        return self.most


def replica(version: str, number: int) -> RunningReplica:
    return RunningReplica(f"{version}-{number}", version, Path("/s"), 1, "ready", 0.0, 0.0)


def seen(*groups: ReplicaGroup, **in_flight: int) -> ServiceState:
    running = tuple(replica(g.version, n) for g in groups for n in range(g.replicas))
    demand = {version: VersionDemand(in_flight=count) for version, count in in_flight.items()}
    return ServiceState(DesiredService(groups), running, demand=demand)


def group(*names: str, replicas: int = 1, weight: float = 1.0) -> ReplicaGroup:
    return ReplicaGroup(tuple(Item(name, Path("/none")) for name in names), replicas, weight)


def numbers(view: ServiceState, room: int = 100) -> list[int]:
    changes = Autoscale(SCALE, slots=4, backend=Room(room)).decide(view, 100.0)
    return [each.replicas for each in (changes.wanted or view.wanted).groups]


def test_every_version_gets_the_replicas_that_its_own_load_needs() -> None:
    assert numbers(seen(group("old"), group("new"), old=9, new=4)) == [3, 2]


def test_a_version_without_a_weight_is_left_alone() -> None:
    assert numbers(seen(group("old"), group("standby", weight=0.0), standby=40)) == [1, 1]


def test_the_load_of_models_in_one_engine_is_added_up() -> None:
    assert numbers(seen(group("a", "b"), a=3, b=3)) == [2]


def test_room_is_shared_by_all_versions() -> None:
    assert numbers(seen(group("old", replicas=2), group("new"), new=40), room=5) == [2, 3]


def test_nothing_changes_where_nothing_must() -> None:
    assert Autoscale(SCALE, slots=4, backend=Room()).decide(seen(group("old"), old=2), 0.0) is NOTHING


def test_a_version_that_comes_back_is_seen_afresh() -> None:
    autoscale = Autoscale(SCALE, slots=4, backend=Room())
    autoscale.decide(seen(group("old", replicas=3)), 0.0)
    autoscale.decide(seen(group("new")), 1000.0)
    assert autoscale.decide(seen(group("old", replicas=3)), 2000.0) is NOTHING


def answers(*first_token_s: float, at: float = 0.0, shadow: bool = False) -> AnswerWindow:
    made = AnswerWindow()
    made.take((), 0.0)
    made.take([AnswerOutcome("v", "r", first_token_s=each, shadow=shadow) for each in first_token_s], at)
    return made


def test_who_comes_waits_as_long_as_those_before_take_to_end() -> None:
    assert answers(*[0.1] * 20, at=10.0).queue_s(8, 10.0) == pytest.approx(4.0)
    assert answers(*[0.1] * 20, at=10.0).queue_s(0, 10.0) == 0.0


def test_where_nothing_ends_the_wait_is_as_long_as_was_watched() -> None:
    assert answers().queue_s(3, 7.0) == 7.0
    assert answers().queue_s(3, 1000.0) == WINDOW_S


def test_one_of_twenty_may_begin_later() -> None:
    assert answers(*[0.1] * 19, 9.0).first_token_s() == 0.1
    assert answers(*[0.1] * 18, 9.0, 9.0).first_token_s() == 9.0
    assert answers(9.0, 9.0).first_token_s() == 0.0


def test_old_answers_and_copies_do_not_count() -> None:
    old = answers(*[9.0] * 10)
    old.take((), WINDOW_S + 1)
    assert old.first_token_s() == 0.0
    assert answers(*[9.0] * 10, shadow=True).first_token_s() == 0.0


def test_a_replica_needs_what_its_files_promise_until_one_runs(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert need_of(1, None, [], [tmp_path]) == ReplicaNeeds(1, 2000)
    assert need_of(2, 5, [], [tmp_path]) == ReplicaNeeds(2, 5)
    assert need_of(1, None, [1], [tmp_path]).memory_bytes > 2000
