"""Guesses of the next tokens, which are computed together with the last token where that is quicker.

A token is a function of the scores before it, so a guess is right or wrong and changes nothing: of a draft,
the tokens up to the first wrong one are kept, and the token in its place is already known. Reading the
weights costs more than the few rows that are multiplied by them, so several tokens can come for the price
of one; where rows cost, in a large batch, `decide` leaves drafts alone.

Two sources: what followed the same three tokens earlier in the sequence (prompt lookup; Saxena 2023), and a
small trigram table of what was generated before for the same tenant.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from windlass.serve.engine.sequence import Sequence as Running

LONGEST = 7
SEED = 3
"""So many tokens in a row must have occurred before."""
PLACES = 8192
MAX_TENANTS = 16
NOBODY = -1
MIX, PRIME = 0x9E3779B97F4A7C15, (1 << 61) - 1
"""Spread pairs of tokens over the places of a table."""
FORGET = 0.1
"""Weight of the newest token in the memory of how often a draft is right."""
GAIN = 1.1
"""How much quicker drafts must be expected to be, before they are used."""


class Trigrams:
    """What followed two tokens, lately; one table for each tenant, the longest unused gives way.

    A table is a plain array in which two tokens have one place, whoever had it before: its memory is taken at
    the start and never grows, however many tenants and texts there are.
    """

    def __init__(self, places: int = PLACES, tenants: int = MAX_TENANTS) -> None:
        self._places = places
        self._pairs = array("q", [NOBODY]) * (places * tenants)
        self._next = array("q", [0]) * (places * tenants)
        self._free = [number * places for number in range(tenants)]
        self._tables: OrderedDict[Hashable, int] = OrderedDict()

    def learn(self, tenant: Hashable, tokens: Sequence[int]) -> None:
        table, pairs, next_ = self._table(tenant), self._pairs, self._next
        for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
            pair = a << 32 | b
            at = table + pair * MIX % PRIME % self._places
            pairs[at], next_[at] = pair, c

    def guess(self, tenant: Hashable, tokens: Sequence[int], most: int) -> list[int]:
        table = self._tables.get(tenant)
        found: list[int] = []
        if table is None or len(tokens) < 2:
            return found
        a, b = tokens[-2], tokens[-1]
        while len(found) < most:
            pair = a << 32 | b
            at = table + pair * MIX % PRIME % self._places
            if self._pairs[at] != pair:
                break
            a, b = b, self._next[at]
            found.append(b)
        return found

    def _table(self, tenant: Hashable) -> int:
        """Return where a tenant's table begins; a new tenant gets an empty one."""
        if tenant not in self._tables:
            if not self._free:
                _, table = self._tables.popitem(last=False)
                self._pairs[table : table + self._places] = array("q", [NOBODY]) * self._places
                self._free.append(table)
            self._tables[tenant] = self._free.pop()
        self._tables.move_to_end(tenant)
        return self._tables[tenant]


def look_up(one: Running, most: int) -> list[int]:
    """Return what followed the last three tokens when they occurred before in the sequence."""
    tokens, places = one.tokens, one.places
    for end in range(max(SEED, one.indexed), len(tokens)):
        places[tokens[end - 3], tokens[end - 2], tokens[end - 1]] = end
    one.indexed = len(tokens)
    if len(tokens) < SEED:
        return []
    at = places.get((tokens[-3], tokens[-2], tokens[-1]))
    if at is None:
        return []
    # What repeats itself goes on repeating: a period shorter than the draft is copied again and again.
    period = tokens[at : at + most]
    return [period[i % len(period)] for i in range(most)]


def draft(one: Running, trigrams: Trigrams) -> list[int]:
    """Return a guess of the next tokens of a sequence; there may be none."""
    request = one.request
    if one.counts is not None or one.matcher is not None or request.logprobs > 0 or one.wants_scores:
        return []  # scores after a guess depend on the guess by more than the model, or are told themselves
    most = min(LONGEST, one.left - 1)
    if most < 1:
        return []
    return look_up(one, most) or trigrams.guess(request.tenant, one.tokens, most)


def learn(one: Running, first: int, right: int) -> None:
    """Remember whether the `first` token of a draft was `right`."""
    one.lucky += FORGET * ((first == right) - one.lucky)


def expected(lucky: float, length: int) -> float:
    """Return how many tokens of a draft will be right, if each is with the same chance."""
    return length if lucky >= 1.0 else lucky * (1.0 - lucky**length) / (1.0 - lucky)


class StepCosts:
    """How long a step of so many rows takes, measured on the engine's own model."""

    def __init__(self, seconds_of: dict[int, float]) -> None:
        self._known = sorted(seconds_of.items())

    @classmethod
    def measured(cls, run: Callable[[int], object], most: int, repeats: int = 3) -> StepCosts:
        """Run steps of 1, 2, 4... rows and keep the quickest of each size."""
        found: dict[int, float] = {}
        rows = 1
        while rows <= most:
            run(rows)
            found[rows] = min(_timed(run, rows) for _ in range(repeats))
            rows *= 2
        return cls(found)

    def seconds(self, rows: int) -> float:
        """Return the time of a step, between or beyond what was measured along straight lines."""
        known = self._known
        if len(known) == 1:
            return known[0][1] * rows
        after = next((i for i, (size, _) in enumerate(known) if size >= rows), len(known) - 1)
        (r1, s1), (r2, s2) = known[max(0, after - 1)], known[max(1, after)]
        return s1 + (s2 - s1) * (rows - r1) / (r2 - r1)


def decide(costs: StepCosts, rows: int, drafts: Sequence[tuple[int, float]]) -> bool:
    """Whether to compute drafts (their lengths, and how lucky their sequences are) along with `rows` rows."""
    extra = sum(length for length, _ in drafts)
    if not extra:
        return False
    gained = sum(expected(lucky, length) for length, lucky in drafts)
    plain = rows / costs.seconds(rows)
    return (rows + gained) / costs.seconds(rows + extra) > GAIN * plain


def _timed(run: Callable[[int], object], rows: int) -> float:
    began = time.perf_counter()
    run(rows)
    return time.perf_counter() - began
