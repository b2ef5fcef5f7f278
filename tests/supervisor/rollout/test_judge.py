"""The judge of a roll-out, on simulated traffic."""

from __future__ import annotations

import random

import pytest

from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.criteria import AnswerSample, compare, compare_text
from windlass.supervisor.rollout.judge import RolloutEvidence

POLICY = Rollout()


def drawn(draw: random.Random, *, errors: float = 0.01, slow: float = 1.0, repeats: float = 0.0,
          length: float = 1.0) -> AnswerSample:  # fmt: skip
    """An answer: times spread over a factor of two, lengths and repetition as texts have them."""
    return AnswerSample(
        failed=draw.random() < errors,
        first_token_s=slow * 0.1 * draw.uniform(0.7, 1.4),
        per_token_s=slow * 0.02 * draw.uniform(0.8, 1.25),
        tokens=max(1, int(length * draw.expovariate(1 / 100))),
        repetition=min(1.0, draw.betavariate(2, 20) + repeats),
    )


def judged(draw: random.Random, pairs: int, worse_text: float = 0.0, **worse: float) -> RolloutEvidence:
    """The case at its first verdict, looked at after every pair."""
    case = RolloutEvidence.opened(POLICY)
    for _ in range(pairs):
        bits = draw.uniform(1.5, 2.5)
        case = case.after(compare(POLICY, drawn(draw), drawn(draw, **worse)))
        case = case.after(compare_text(bits, bits * (1 + worse_text + draw.gauss(0, 0.01))))
        if case.verdict != "hold":
            break
    return case


def test_a_version_as_good_as_the_other_is_promoted_every_time() -> None:
    verdicts = [judged(random.Random(seed), 300).verdict for seed in range(40)]
    assert verdicts == ["promote"] * 40


@pytest.mark.parametrize(
    ("criterion", "worse"),
    [
        ("errors", {"errors": 0.4}),
        ("per_token", {"slow": 4.0}),
        ("repetition", {"repeats": 0.5}),
        ("longer", {"length": 20.0}),
        ("shorter", {"length": 0.02}),
        ("held_out", {"worse_text": 0.5}),
    ],
)
def test_a_worse_version_is_rolled_back_for_what_is_worse(criterion: str, worse: dict[str, float]) -> None:
    for seed in range(10):
        case = judged(random.Random(seed), 300, **worse)
        assert case.verdict == "roll back"
        assert criterion in case.alarms
        assert criterion in case.reason


def test_nothing_is_promoted_without_evidence() -> None:
    case = RolloutEvidence.opened(POLICY)
    assert case.verdict == "hold"
    assert set(case.unsure) == set(case.findings)


def test_a_fault_decides_at_once_whatever_spoke_for_the_version() -> None:
    case = judged(random.Random(1), 300).with_fault("not_a_number: the scores were no numbers")
    assert case.verdict == "roll back"
    assert case.reason.startswith("not_a_number")


def test_a_failed_answer_says_nothing_about_time_or_text() -> None:
    assert compare(POLICY, AnswerSample(failed=True), AnswerSample()) == {"errors": -1.0}


def test_the_table_says_what_was_found_by_every_criterion() -> None:
    table = judged(random.Random(2), 300).table()
    assert [row["criterion"] for row in table] == list(RolloutEvidence.opened(POLICY).findings)
    assert all(row["for"] >= row["for_needed"] for row in table)
