"""Learning the speed of engines, and the estimates made from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.limits.estimate import START_TOKENS, EngineSpeed, LearnedValue, LoadAhead
from windlass.serve.gateway.limits.request_cost import RequestCost

ASKED = RequestCost(model="m", answers=1, prompt_tokens=84, max_tokens=50)


def learned() -> EngineSpeed:
    """A speed of 1 ms per prompt token, 20 ms per generated token, and 0.98 s per answer."""
    speed = EngineSpeed()
    speed.began(0.1, 100 - START_TOKENS)
    speed.ended(ASKED, after_first_s=0.98, written=50)
    return speed


def test_nothing_waits_before_anything_was_learned() -> None:
    speed = EngineSpeed()
    unread_s = 100 * speed.reading_s(100)
    assert speed.estimate(ASKED, LoadAhead(answers=40, unread_s=unread_s, slots=4)).wait_s < 0.1


def test_an_idle_engine_is_begun_with_at_once() -> None:
    estimate = learned().estimate(ASKED, LoadAhead(slots=4))
    assert estimate.wait_s == 0
    assert estimate.first_s == pytest.approx(0.1)
    assert estimate.whole_s == pytest.approx(0.1 + 49 * 0.02)


def test_prompts_that_wait_are_read_first() -> None:
    assert learned().estimate(ASKED, LoadAhead(2, 0.3, slots=4)).wait_s == pytest.approx(0.3)


def test_a_request_without_a_slot_waits_for_answers_to_end() -> None:
    assert learned().estimate(ASKED, LoadAhead(4, 0, slots=4)).wait_s == pytest.approx(0.245)
    assert learned().estimate(ASKED, LoadAhead(7, 0, slots=4)).wait_s == pytest.approx(0.98)


def test_a_request_larger_than_the_engine_is_begun_with_when_it_is_idle() -> None:
    many = RequestCost(model="m", answers=9, prompt_tokens=84, max_tokens=9 * 50)
    assert learned().estimate(many, LoadAhead(0, 0, slots=4)).wait_s == 0


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_a_figure_stays_within_what_was_seen(observed: list[float]) -> None:
    figure = LearnedValue(1.0)
    for one in observed:
        figure.learn(one)
    assert min(observed) * 0.999 <= figure.value <= max(observed) * 1.001


def test_one_wild_observation_moves_a_figure_no_more_than_a_moderate_one() -> None:
    figure = LearnedValue(1.0)
    for _ in range(50):
        figure.learn(1.0)
    figure.learn(1e9)
    assert figure.value < 1.2


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_what_cannot_be_a_duration_teaches_nothing(nonsense: float) -> None:
    figure = LearnedValue(2.0)
    figure.learn(nonsense)
    assert figure.value == 2.0
