"""The policy, one decision at a time: laws that hold for every load."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windlass.spec.scale import Scale
from windlass.supervisor.autoscale.decide import Past, ScaleSignals, decide

SLOTS = 8
SCALE = Scale(max_replicas=10, calm=60.0, cooldown=20.0, first_token=2.0)
LOADS = st.lists(st.integers(0, 150), min_size=1, max_size=120)


def numbers(loads: list[int], scale: Scale, *, room: int = 10, every_s: float = 5.0) -> list[int]:
    """Decide once for each load, `every_s` apart; what is decided is ready at once."""
    replicas, past, decided = scale.min_replicas, Past(), []
    for step, load in enumerate(loads):
        seen = ScaleSignals(replicas, replicas, load)
        decision = decide(scale, past, seen, slots=SLOTS, room=room, now=step * every_s)
        replicas, past = decision.replicas, decision.past
        decided.append(replicas)
    return decided


def one(
    seen: ScaleSignals, scale: Scale = SCALE, past: Past | None = None, room: int = 10, now: float = 100.0
) -> int:
    return decide(scale, past or Past(), seen, slots=SLOTS, room=room, now=now).replicas


@given(LOADS)
def test_a_replica_that_came_stays_for_as_long_as_calm_must_last(loads: list[int]) -> None:
    decided = numbers(loads, SCALE)
    for step in range(1, len(decided)):
        if decided[step] < decided[step - 1]:
            lately = decided[max(0, step - 12) : step]
            assert all(number >= decided[step - 1] for number in lately)


@given(LOADS)
def test_load_beyond_the_target_is_met_at_once(loads: list[int]) -> None:
    for load, number in zip(loads, numbers(loads, SCALE), strict=True):
        assert number >= min(10, math.ceil(load / (SCALE.load * SLOTS)))


@given(LOADS, st.integers(0, 3), st.integers(1, 20))
def test_the_number_stays_within_its_bounds(loads: list[int], least: int, room: int) -> None:
    scale = Scale(min_replicas=least, max_replicas=6, calm=60.0)
    assert all(least <= number <= max(least, min(6, room)) for number in numbers(loads, scale, room=room))


@given(st.integers(1, 10), st.integers(0, 100), st.integers(0, 100))
def test_more_load_never_means_fewer_replicas(replicas: int, load: int, more: int) -> None:
    assert one(ScaleSignals(replicas, replicas, load)) <= one(ScaleSignals(replicas, replicas, load + more))


def test_refused_requests_are_load_too() -> None:
    assert one(ScaleSignals(2, 2, in_flight=12, refused=20)) == 6


def test_requests_that_wait_bring_one_replica_and_then_a_pause() -> None:
    slow = ScaleSignals(2, 2, in_flight=10, queue_s=5.0)
    first = decide(SCALE, Past(), slow, slots=SLOTS, room=10, now=100.0)
    assert first.replicas == 3
    again = ScaleSignals(3, 3, in_flight=10, queue_s=5.0)
    assert decide(SCALE, first.past, again, slots=SLOTS, room=10, now=119.0).replicas == 3
    assert decide(SCALE, first.past, again, slots=SLOTS, room=10, now=120.0).replicas == 4


def test_answers_that_begin_late_bring_a_replica_only_if_requests_share_one() -> None:
    assert one(ScaleSignals(2, 2, in_flight=3, first_token_s=9.0)) == 3
    assert one(ScaleSignals(2, 2, in_flight=2, first_token_s=9.0)) == 2


def test_a_replica_that_starts_is_waited_for_before_slowness_brings_another() -> None:
    assert one(ScaleSignals(3, 2, in_flight=12, queue_s=9.0)) == 3


def test_a_replica_that_starts_is_not_let_go() -> None:
    past = Past()
    for now in range(0, 300, 5):
        decision = decide(SCALE, past, ScaleSignals(3, 2, in_flight=0), slots=SLOTS, room=10, now=now)
        assert decision.replicas == 3
        past = decision.past
    assert decide(SCALE, past, ScaleSignals(3, 3, 0), slots=SLOTS, room=10, now=300.0).replicas == 3
    assert decide(SCALE, past, ScaleSignals(3, 3, 0), slots=SLOTS, room=10, now=360.0).replicas == 1


def test_running_replicas_are_not_stopped_for_lack_of_capacity() -> None:
    assert one(ScaleSignals(4, 4, in_flight=24), room=1) == 4


def test_nothing_is_let_go_to_zero_unless_that_is_requested() -> None:
    assert numbers([0] * 40, SCALE)[-1] == 1
    assert numbers([1, *([0] * 40)], Scale(min_replicas=0, calm=60.0))[-1] == 0
    assert numbers([*([0] * 40), 1], Scale(min_replicas=0, calm=60.0))[-1] == 1


def test_a_job_file_whose_least_is_more_than_its_most_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_replicas must be at most max_replicas"):
        Scale(min_replicas=3, max_replicas=2)
