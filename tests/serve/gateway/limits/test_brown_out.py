"""Brown-out: what raises the level, what lowers it, and that no class is refused without cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.limits.brown_out import BrownOutState, Pressure, RecentRequests, cause_of, decide
from windlass.serve.gateway.limits.limit_errors import excluded_by
from windlass.serve.gateway.limits.request_cost import RequestCost
from windlass.spec.limits import BrownOut

POLICY = BrownOut()
shares = st.floats(0, 1)
pressures = st.builds(Pressure, shares, shares, shares, st.floats(0, 20), st.floats(0, 20))


def test_waiting_alone_is_level_1() -> None:
    assert cause_of(Pressure(wait=POLICY.wait), POLICY) == 1


def test_refusals_are_level_2_while_important_requests_fit() -> None:
    assert cause_of(Pressure(refused=0.5, firm=0.9), POLICY) == 2


def test_unimportant_requests_are_refused_where_the_others_fill_the_engines() -> None:
    assert cause_of(Pressure(refused=0.5, firm=1.5, urgent=0.5), POLICY) == 3


def test_only_urgent_requests_are_taken_where_they_fill_the_engines() -> None:
    assert cause_of(Pressure(refused=0.5, firm=3, urgent=1.1), POLICY) == 4


@given(pressures, st.integers(0, 4))
def test_a_level_is_taken_at_once_where_there_is_a_cause(pressure: Pressure, level: int) -> None:
    assert decide(BrownOutState(level), pressure, POLICY, now=7.0).level >= cause_of(pressure, POLICY)


@given(st.lists(st.tuples(st.floats(0, 2), pressures), max_size=40))
def test_the_level_falls_one_at_a_time_and_only_after_calm(story: list[tuple[float, Pressure]]) -> None:
    now, state = 0.0, BrownOutState()
    fell_at = caused_at = 0.0
    for pause_s, pressure in story:
        now += pause_s
        before, state = state.level, decide(state, pressure, POLICY, now)
        if cause_of(pressure, POLICY) >= before:
            caused_at = now
        if state.level < before:
            assert before - state.level == 1
            assert now - max(fell_at, caused_at) >= POLICY.calm
            fell_at = now


def test_ten_times_too_many_ordinary_requests_do_not_shut_ordinary_requests_out() -> None:
    recent = RecentRequests()
    for number in range(200):
        now = number * 0.01
        recent.count(0, now, admitted=number % 10 == 0, refused=number % 10 != 0)
    level = cause_of(recent.pressure(2.0, wait=1.0), POLICY)
    assert level == 3
    assert excluded_by(level, RequestCost("m", 1, 10, 10, priority=0), 5.0) is None
    assert excluded_by(level, RequestCost("m", 1, 10, 10, priority=-1), 5.0) is not None


@pytest.mark.parametrize(
    ("level", "cost", "taken"),
    [
        (1, RequestCost("m", 4, 10, 10, priority=-5, alternatives=5), True),
        (2, RequestCost("m", 2, 10, 10), False),
        (2, RequestCost("m", 1, 10, 10, alternatives=1), False),
        (2, RequestCost("m", 1, 10, 10, priority=-1), True),
        (3, RequestCost("m", 1, 10, 10, priority=-1), False),
        (4, RequestCost("m", 1, 10, 10, priority=0), False),
        (4, RequestCost("m", 1, 10, 10, priority=1), True),
    ],
)
def test_a_level_leaves_out_what_the_ladder_says(level: int, cost: RequestCost, taken: bool) -> None:
    assert (excluded_by(level, cost, 5.0) is None) == taken
