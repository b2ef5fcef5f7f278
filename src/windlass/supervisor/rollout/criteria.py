"""The criteria of a roll-out, and how a pair of answers becomes one bounded number for each.

Input: two answers to requests of about the same time, one of each version. Output: for every criterion a
number that grows the worse the new version does. A mean up to `tolerated` is accepted, one of `unbearable` is
not: between the two a version is neither rolled back nor promoted.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.sequential_test import BoundedMean


@dataclass(frozen=True)
class AnswerSample:
    """One answer, to a client's request or to our own."""

    failed: bool = False
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    """0 if there was no second token."""
    tokens: int = 0
    repetition: float = 0.0


@dataclass(frozen=True)
class Criterion:
    """One way to be worse: the range of its numbers, and its two bounds."""

    name: str
    low: float
    high: float
    tolerated: float
    unbearable: float
    meaning: str

    @property
    def is_tolerable(self) -> BoundedMean:
        """The claim that must be refuted to roll back."""
        return BoundedMean(self.low, self.high, self.tolerated)

    @property
    def is_bad(self) -> BoundedMean:
        """The claim, about the negated numbers, that must be refuted to promote."""
        return BoundedMean(self.low, self.high, self.unbearable).mirrored


def criteria_of(policy: Rollout) -> tuple[Criterion, ...]:
    """Return the criteria with the bounds of a policy."""
    slow = f"took {policy.slower:g} times as long, or longer"
    rank, worst = 0.5 + policy.length, (1.5 + policy.length) / 2
    errors, repetition, held_out = policy.errors, policy.repetition, policy.held_out
    return (
        Criterion("errors", -1, 1, errors, errors + 0.15, "share of failed answers beyond the other's"),
        Criterion("first_token", 0, 1, 0.5, 0.6, f"how often the first token {slow}"),
        Criterion("per_token", 0, 1, 0.5, 0.6, f"how often further tokens {slow}"),
        Criterion(
            "repetition", -1, 1, repetition, repetition + 0.2, "repeated token pairs beyond the other's"
        ),
        Criterion("longer", 0, 1, rank, worst, "how often an answer was the longer one"),
        Criterion("shorter", 0, 1, rank, worst, "how often an answer was the shorter one"),
        Criterion("held_out", -1, 1, held_out, held_out + 0.15, "relative excess of bits per byte"),
    )


def compare(policy: Rollout, stable: AnswerSample, candidate: AnswerSample) -> dict[str, float]:
    """Return the numbers of a pair of answers; if one failed, only `errors`."""
    numbers = {"errors": float(candidate.failed) - float(stable.failed)}
    if stable.failed or candidate.failed:
        return numbers
    longer = _wins(candidate.tokens, stable.tokens)
    numbers |= {
        "first_token": _is_slower(policy, stable.first_token_s, candidate.first_token_s),
        "repetition": candidate.repetition - stable.repetition,
        "longer": longer,
        "shorter": 1.0 - longer,
    }
    if stable.per_token_s and candidate.per_token_s:
        numbers["per_token"] = _is_slower(policy, stable.per_token_s, candidate.per_token_s)
    return numbers


def compare_text(stable_bits: float, candidate_bits: float) -> dict[str, float]:
    """Return the number for the bits per byte of the same text."""
    return {"held_out": (candidate_bits - stable_bits) / max(stable_bits, 1e-9)}


def _is_slower(policy: Rollout, stable_s: float, candidate_s: float) -> float:
    return float(candidate_s > policy.slower * stable_s + policy.slower_by_s)


def _wins(one: int, other: int) -> float:
    return 0.5 if one == other else float(one > other)
