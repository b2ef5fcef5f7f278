import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.local.calibrate import LARGEST, calibrate, measured_step_s


def test_without_runs_nothing_is_corrected() -> None:
    assert calibrate([]).factor == 1.0


@given(st.floats(0.6, 1.8))
def test_with_more_runs_the_factor_comes_ever_nearer_to_what_they_took(truth: float) -> None:
    errors = [abs(math.log(calibrate([truth] * runs).factor / truth)) for runs in (1, 3, 10, 50)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_one_run_is_not_believed_entirely() -> None:
    assert 1.0 < calibrate([1.4]).factor < 1.4


@given(st.lists(st.floats(1e-6, 1e6), max_size=20))
def test_no_journal_makes_a_prediction_wild(ratios: list[float]) -> None:
    found = calibrate(ratios)
    assert 1 / LARGEST <= found.factor <= LARGEST
    low, high = found.interval(1.0)
    assert 0.05 < low < 1 < high < 20


def test_agreement_makes_sure_and_disagreement_does_not() -> None:
    alike, apart = calibrate([1.1] * 20), calibrate([0.7, 1.6] * 10)
    assert alike.deviation < calibrate([]).deviation
    assert apart.deviation > alike.deviation


def steps(first: int, count: int, at: float, each_s: float) -> list[dict[str, Any]]:
    return [{"event": "step", "step": first + n, "time": at + n * each_s} for n in range(count)]


def test_evaluations_and_checkpoints_between_steps_are_not_steps() -> None:
    records = [*steps(1, 8, 0.0, 0.5), {"event": "evaluation"}, *steps(9, 8, 60.0, 0.5)]
    assert measured_step_s(records) == pytest.approx(0.5)


def test_a_journal_that_reports_every_tenth_step_reports_as_much() -> None:
    records = [{"event": "step", "step": 10 * n, "time": 3.0 * n} for n in range(1, 6)]
    assert measured_step_s(records) == pytest.approx(0.3)


@pytest.mark.parametrize("event", ["lost", "resumed", "restarted"])
def test_a_disturbed_run_teaches_nothing(event: str) -> None:
    assert measured_step_s([*steps(1, 20, 0.0, 0.5), {"event": event}]) is None


def test_a_run_of_a_few_steps_teaches_nothing() -> None:
    assert measured_step_s(steps(1, 4, 0.0, 0.5)) is None
