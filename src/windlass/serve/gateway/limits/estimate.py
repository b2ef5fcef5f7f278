"""How long a request would take: learned from those that were answered, one after another.

    wait   until engines have read what others wait for, and until a slot is free
    first  the wait, and the request's own prompt
    whole  the first token, and as many more as answers to such requests have

A figure moves a little with every observation, and one that is far off moves it no more than one that is off
a bit, so neither a hiccup nor a prompt that was found in a cache upsets it.
"""

from __future__ import annotations

import math

import msgspec

from windlass.serve.gateway.limits.request_cost import RequestCost

STEP = 0.1
"""Share of the way towards an observation, in logarithms."""
MAX_STEP = 1.0
START_TOKENS = 16
"""What beginning with any request costs, in tokens of a prompt."""


class LoadAhead(msgspec.Struct, frozen=True):
    """What is under way when a request comes."""

    answers: int = 0
    """Answers that are being made or wait."""
    unread_s: float = 0.0
    """Seconds until all prompts are read that came before."""
    slots: int = 1
    """Answers that all engines make at once."""


class WaitEstimate(msgspec.Struct, frozen=True):
    """Seconds until a request is begun with, until its first token, and until its end."""

    wait_s: float
    first_s: float
    whole_s: float


class Typical:
    """A positive figure, learned."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.seen = 0

    def learn(self, observed: float) -> None:
        """Take the first observation as it is; later ones move the figure."""
        if observed <= 0 or not math.isfinite(observed):
            return
        self.seen += 1
        if self.seen == 1:
            self.value = observed
            return
        off = math.log(observed / self.value)
        self.value *= math.exp(max(STEP, 1 / self.seen) * max(-MAX_STEP, min(MAX_STEP, off)))


class EngineSpeed:
    """How quickly engines work. Until something was answered, quickly: nothing is refused on a guess."""

    def __init__(self) -> None:
        self.read_s = Typical(1e-6)
        """Seconds for each token of a prompt."""
        self.write_s = Typical(1e-4)
        """Seconds from one token of an answer to the next."""
        self.hold_s = Typical(1e-3)
        """Seconds for which an answer holds its slot once it has begun."""
        self.written_share = Typical(1.0)
        """Tokens that an answer has, of those that it might have."""

    def estimate(self, wish: RequestCost, load: LoadAhead) -> WaitEstimate:
        """Return how long a request would take that comes now."""
        wait_s = load.unread_s + self.slot_s(wish.answers, load)
        first_s = wait_s + self.reading_s(wish.prompt_tokens)
        longest = wish.max_tokens / max(1, wish.answers)
        tokens = max(0.0, longest * min(1.0, self.written_share.value) - 1)
        return WaitEstimate(wait_s, first_s, first_s + tokens * self.write_s.value)

    def reading_s(self, prompt_tokens: int) -> float:
        """Return how long it takes to read a prompt and to write the first token."""
        return (prompt_tokens + START_TOKENS) * self.read_s.value

    def slot_s(self, answers: int, load: LoadAhead) -> float:
        """Return how long it takes until there is a slot; where all are full, one is free every so often."""
        lacking = load.answers + answers - load.slots
        return lacking * self.hold_s.value / load.slots if lacking > 0 and load.answers else 0.0

    def began(self, reading_s: float, prompt_tokens: int) -> None:
        """Learn from a first token how long it took to read its prompt, once those before were read."""
        self.read_s.learn(reading_s / (prompt_tokens + START_TOKENS))

    def ended(self, wish: RequestCost, after_first_s: float, written: int) -> None:
        """Learn from an answer that has ended, and that had `written` tokens in all its parts."""
        self.hold_s.learn(after_first_s)
        each = written / max(1, wish.answers)
        if each > 1:
            self.write_s.learn(after_first_s / (each - 1))
        if wish.max_tokens and written:
            self.written_share.learn(written / wish.max_tokens)
