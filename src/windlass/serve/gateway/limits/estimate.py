"""Estimates how long a request would take, learned from finished requests.

    wait   until the engines have prefilled the requests ahead, and a slot is free
    first  the wait, and the prefill of the request's own prompt
    whole  the first token, and the time of the usual number of further tokens

Every observation moves a value by a bounded step, so neither a hiccup nor a prompt that was found in the
prefix cache distorts it.
"""

from __future__ import annotations

import math

import msgspec

from windlass.serve.gateway.limits.request_cost import RequestCost

STEP = 0.1
"""The share of the distance to an observation, in logarithms."""
MAX_STEP = 1.0
START_TOKENS = 16
"""The fixed cost of starting a request, in prompt tokens."""


class LoadAhead(msgspec.Struct, frozen=True):
    """The load ahead of a new request."""

    answers: int = 0
    """Answers in progress or waiting."""
    unread_s: float = 0.0
    """Seconds until all earlier prompts are prefilled."""
    slots: int = 1
    """Answers that all engines can run at once."""


class WaitEstimate(msgspec.Struct, frozen=True):
    """Seconds until a request starts, until its first token, and until its end."""

    wait_s: float
    first_s: float
    whole_s: float


class LearnedValue:
    """A positive value, learned from observations."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.seen = 0

    def learn(self, observed: float) -> None:
        """Take the first observation as it is; later ones move the value."""
        if observed <= 0 or not math.isfinite(observed):
            return
        self.seen += 1
        if self.seen == 1:
            self.value = observed
            return
        off = math.log(observed / self.value)
        self.value *= math.exp(max(STEP, 1 / self.seen) * max(-MAX_STEP, min(MAX_STEP, off)))


class EngineSpeed:
    """How fast the engines work. The initial values are optimistic: nothing is refused on a guess."""

    def __init__(self) -> None:
        self.read_s = LearnedValue(1e-6)
        """Seconds per prompt token."""
        self.write_s = LearnedValue(1e-4)
        """Seconds between tokens of an answer."""
        self.hold_s = LearnedValue(1e-3)
        """Seconds from the first token of an answer to its end."""
        self.written_share = LearnedValue(1.0)
        """Length of answers as a share of their maximum."""

    def estimate(self, cost: RequestCost, load: LoadAhead) -> WaitEstimate:
        """Return how long a request that arrives now would take."""
        wait_s = load.unread_s + self.slot_s(cost.answers, load)
        first_s = wait_s + self.reading_s(cost.prompt_tokens)
        longest = cost.max_tokens / max(1, cost.answers)
        tokens = max(0.0, longest * min(1.0, self.written_share.value) - 1)
        return WaitEstimate(wait_s, first_s, first_s + tokens * self.write_s.value)

    def reading_s(self, prompt_tokens: int) -> float:
        """Return the time of a prefill, including the first token."""
        return (prompt_tokens + START_TOKENS) * self.read_s.value

    def slot_s(self, answers: int, load: LoadAhead) -> float:
        """Return the time until slots are free; when all are taken, they become free at a regular rate."""
        lacking = load.answers + answers - load.slots
        return lacking * self.hold_s.value / load.slots if lacking > 0 and load.answers else 0.0

    def began(self, reading_s: float, prompt_tokens: int) -> None:
        """Learn from the time of a prefill."""
        self.read_s.learn(reading_s / (prompt_tokens + START_TOKENS))

    def ended(self, cost: RequestCost, after_first_s: float, written: int) -> None:
        """Learn from a finished request, whose answers had `written` tokens together."""
        self.hold_s.learn(after_first_s)
        per_answer = written / max(1, cost.answers)
        if per_answer > 1:
            self.write_s.learn(after_first_s / (per_answer - 1))
        if cost.max_tokens and written:
            self.written_share.learn(written / cost.max_tokens)
