"""Evidence: what true claims cost, and how soon false ones are found."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.supervisor.rollout.sequential_test import STAKES, BoundedMean, Evidence

CLAIM = BoundedMean(-1.0, 1.0, 0.05)
numbers = st.lists(st.floats(-1, 1), max_size=60)


def weighed(claim: BoundedMean, seen: list[float]) -> Evidence:
    evidence = Evidence(claim)
    for number in seen:
        evidence = evidence.after(number)
    return evidence


@given(numbers)
def test_a_fortune_is_never_lost_altogether(seen: list[float]) -> None:
    evidence = weighed(CLAIM, seen)
    assert evidence.fortune > 0
    assert evidence.peak >= max(1.0, evidence.fortune) or math.isclose(evidence.peak, evidence.fortune)


@given(numbers, numbers)
def test_what_was_refuted_stays_refuted(first: list[float], then: list[float]) -> None:
    before = weighed(CLAIM, first)
    after = before
    for number in then:
        after = after.after(number)
    assert not before.refutes(0.01) or after.refutes(0.01)


@given(numbers, st.floats(-1, 1), st.floats(0, 2))
def test_a_larger_number_never_speaks_less_against_the_claim(
    seen: list[float], number: float, more: float
) -> None:
    before = weighed(CLAIM, seen)
    assert before.after(number + more).fortune >= before.after(number).fortune * (1 - 1e-12)


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1))
def test_a_true_claim_never_makes_the_gambler_richer_on_average(low: float, high: float, part: float) -> None:
    """Two numbers whose mean is at most the bound: the expected fortune after one of them is at most 1."""
    low, high = sorted((low, high))
    if part * high + (1 - part) * low > CLAIM.bound:
        return
    start = Evidence(CLAIM)
    expected = part * start.after(high).fortune + (1 - part) * start.after(low).fortune
    assert expected <= 1 + 1e-9


def test_numbers_outside_the_range_count_as_its_ends() -> None:
    assert weighed(CLAIM, [7.0]) == weighed(CLAIM, [1.0])


def fortunes(claim: BoundedMean, runs_RN: np.ndarray) -> np.ndarray:
    """The fortune of every run after every number, as `Evidence` has it."""
    logs = [np.log1p(stake * (runs_RN - claim.bound)).cumsum(axis=1) for stake in claim.stakes]
    return np.exp(np.stack(logs)).mean(axis=0)


def test_many_runs_at_once_are_weighed_as_one_by_one() -> None:
    seen = [random.Random(3).uniform(-1, 1) for _ in range(50)]
    assert fortunes(CLAIM, np.array([seen]))[0, -1] == pytest.approx(weighed(CLAIM, seen).fortune)
    assert len(STAKES) == len(CLAIM.stakes)


@pytest.mark.parametrize("alpha", [0.1, 0.02])
@pytest.mark.parametrize("kind", ["coins", "spread", "rare"])
def test_looking_after_every_number_raises_no_more_false_alarms_than_promised(
    alpha: float, kind: str
) -> None:
    """The claim just holds; 4000 gamblers look 500 times each. Three standard deviations are allowed."""
    draw = np.random.default_rng(11)
    size = (4000, 500)
    runs = {
        "coins": lambda: np.where(draw.random(size) < (1 + CLAIM.bound) / 2, 1.0, -1.0),
        "spread": lambda: np.clip(draw.uniform(-0.5, 0.5, size) + CLAIM.bound, -1, 1),
        "rare": lambda: (draw.random(size) < CLAIM.bound).astype(float),
    }[kind]()
    alarmed = (fortunes(CLAIM, runs).max(axis=1) >= 1 / alpha).mean()
    assert alarmed <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / len(runs))


@pytest.mark.parametrize(
    ("claim", "mean", "within"),
    [
        (BoundedMean(-1, 1, 0.02), 0.3, 90),  # 30% of the answers fail
        (BoundedMean(0, 1, 0.5), 0.98, 20),  # nearly every answer is slow
        (BoundedMean(0, 1, 0.75), 0.98, 60),  # nearly every answer is the longer one
    ],
)
def test_a_false_claim_is_refuted_soon(claim: BoundedMean, mean: float, within: int) -> None:
    """Nine of ten gamblers know it after so many numbers, at the alpha of one of seven criteria."""
    draw = np.random.default_rng(12)
    runs = (draw.random((2000, within)) < mean).astype(float)
    found = (fortunes(claim, runs).max(axis=1) >= 7 / 0.01).mean()
    assert found >= 0.9
