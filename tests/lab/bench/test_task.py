"""Rates and delays follow from the times of tokens alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.bench.task import TimedAnswer, agreement, draw_task, pace_of


def test_tokens_are_counted_from_the_first_question_to_the_last_token() -> None:
    early = TimedAnswer(10.0, [10.5, 11.0], [1, 2])
    late = TimedAnswer(10.2, [11.2, 14.0], [3, 4])
    assert pace_of([early, late]).tokens_per_s == pytest.approx(4 / 4.0)


def test_the_first_token_is_timed_from_its_own_question() -> None:
    answers = [TimedAnswer(0.0, [1.0, 1.1], [1, 2]), TimedAnswer(5.0, [8.0, 8.1], [1, 2])]
    pace = pace_of(answers)
    assert pace.first_p50_s == pytest.approx(2.0)
    assert pace.between_p50_s == pytest.approx(0.1)


def test_the_pause_between_two_requests_is_no_delay_between_tokens() -> None:
    answers = [TimedAnswer(0.0, [1.0, 1.1], [1, 2]), TimedAnswer(100.0, [101.0, 101.1], [1, 2])]
    assert pace_of(answers).between_p99_s == pytest.approx(0.1)


@given(shift=st.floats(-1e3, 1e3), speed=st.floats(0.1, 10))
def test_a_pace_does_not_depend_on_when_the_clock_began_and_scales_with_it(
    shift: float, speed: float
) -> None:
    answers = [TimedAnswer(0.0, [1.0, 1.5, 3.0], [1, 2, 3]), TimedAnswer(0.5, [2.0, 2.5, 4.0], [1, 2, 3])]
    moved = [
        TimedAnswer(a.sent_s / speed + shift, [t / speed + shift for t in a.times_s], a.tokens)
        for a in answers
    ]
    assert pace_of(moved).tokens_per_s == pytest.approx(speed * pace_of(answers).tokens_per_s, rel=1e-6)
    assert pace_of(moved).first_p99_s == pytest.approx(pace_of(answers).first_p99_s / speed, rel=1e-6)


def test_agreement_is_the_share_of_equal_first_tokens() -> None:
    ours = [TimedAnswer(0, [1, 2], [7, 8]), TimedAnswer(0, [1, 2], [9, 9])]
    theirs = [TimedAnswer(0, [1, 2], [7, 0]), TimedAnswer(0, [1, 2], [1, 9])]
    assert agreement(ours, theirs) == 0.5


@given(concurrency=st.integers(1, 40), requests=st.integers(1, 40))
def test_there_are_never_fewer_requests_than_are_in_flight(concurrency: int, requests: int) -> None:
    task = draw_task((1, 2), vocabulary=512, prompt=8, output=4, concurrency=concurrency, requests=requests)
    assert len(task.prompts) == max(concurrency, requests)
    assert all(len(prompt) == 8 and max(prompt) < 512 for prompt in task.prompts)


def test_a_seed_draws_the_same_prompts_again_and_another_seed_draws_others() -> None:
    first, again, other = (
        draw_task(seed, vocabulary=512, prompt=8, output=4, concurrency=2, requests=2)
        for seed in ((1, 1), (1, 1), (1, 2))
    )
    assert first == again
    assert first != other
