"""Speculative decoding without a draft model: drafts are verified in the same step as the last token.

A token is a function of the scores before it, so a draft never changes an answer: its tokens up to the first
wrong one are kept, and the right token in that place is already computed. In a small batch reading the
weights costs more than multiplying a few more rows by them, so several tokens come for the price of one; in
a large batch rows cost time, and `decide` drops the drafts.

Two sources: the continuation of the same three tokens earlier in the sequence (prompt lookup; Saxena 2023),
and a small trigram table of the tenant's earlier answers.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from windlass.serve.engine.sequence import Sequence as Running

LONGEST = 7
SEED = 3
"""Number of tokens in a row that must have occurred before."""
PLACES = 8192
MAX_TENANTS = 16
EMPTY = -1
MIX, PRIME = 0x9E3779B97F4A7C15, (1 << 61) - 1
"""Spread pairs of tokens over the places of a table."""
FORGET = 0.1
"""Weight of the newest draft in the moving average of the acceptance rate."""
GAIN = 1.1
"""Drafts are used only if they are expected to be this much faster."""


class Trigrams:
    """The last token seen after each pair of tokens. One table a tenant; the least recently used is dropped.

    A table is a hash table without chaining: a new pair overwrites the old one in its place. All memory is
    allocated at the start and never grows, however many tenants and texts there are.
    """

    def __init__(self, places: int = PLACES, tenants: int = MAX_TENANTS) -> None:
        self._places = places
        self._pairs = array("q", [EMPTY]) * (places * tenants)
        self._next = array("q", [0]) * (places * tenants)
        self._free = [number * places for number in range(tenants)]
        self._tables: OrderedDict[Hashable, int] = OrderedDict()

    def learn(self, tenant: Hashable, tokens: Sequence[int]) -> None:
        table, pairs, next_ = self._table(tenant), self._pairs, self._next
        for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
            pair = a << 32 | b
            at = table + pair * MIX % PRIME % self._places
            pairs[at], next_[at] = pair, c

    def guess(self, tenant: Hashable, tokens: Sequence[int], max_tokens: int) -> list[int]:
        table = self._tables.get(tenant)
        found: list[int] = []
        if table is None or len(tokens) < 2:
            return found
        a, b = tokens[-2], tokens[-1]
        while len(found) < max_tokens:
            pair = a << 32 | b
            at = table + pair * MIX % PRIME % self._places
            if self._pairs[at] != pair:
                break
            a, b = b, self._next[at]
            found.append(b)
        return found

    def _table(self, tenant: Hashable) -> int:
        """Return the offset of a tenant's table; a new tenant gets an empty one."""
        if tenant not in self._tables:
            if not self._free:
                _, table = self._tables.popitem(last=False)
                self._pairs[table : table + self._places] = array("q", [EMPTY]) * self._places
                self._free.append(table)
            self._tables[tenant] = self._free.pop()
        self._tables.move_to_end(tenant)
        return self._tables[tenant]


def look_up(seq: Running, max_tokens: int) -> list[int]:
    """Return what followed the previous occurrence of the last three tokens in the sequence."""
    tokens, places = seq.tokens, seq.places
    for end in range(max(SEED, seq.indexed), len(tokens)):
        places[tokens[end - 3], tokens[end - 2], tokens[end - 1]] = end
    seq.indexed = len(tokens)
    if len(tokens) < SEED:
        return []
    at = places.get((tokens[-3], tokens[-2], tokens[-1]))
    if at is None:
        return []
    # A period shorter than the draft is repeated to its length.
    period = tokens[at : at + max_tokens]
    return [period[i % len(period)] for i in range(max_tokens)]


def draft(seq: Running, trigrams: Trigrams) -> list[int]:
    """Return a draft of the next tokens of a sequence, or an empty list."""
    request = seq.request
    if seq.counts is not None or seq.matcher is not None or request.logprobs > 0 or seq.wants_scores:
        return []  # penalties, grammars: scores depend on the draft beyond the model
    max_tokens = min(LONGEST, seq.left - 1)
    if max_tokens < 1:
        return []
    return look_up(seq, max_tokens) or trigrams.guess(request.tenant, seq.tokens, max_tokens)


def learn(seq: Running, first: int, right: int) -> None:
    """Update the acceptance rate: was the `first` token of a draft the `right` one?"""
    seq.acceptance += FORGET * ((first == right) - seq.acceptance)


def expected(acceptance: float, length: int) -> float:
    """Return the expected number of accepted tokens of a draft, if each is right with the same chance."""
    return length if acceptance >= 1.0 else acceptance * (1.0 - acceptance**length) / (1.0 - acceptance)


class StepCosts:
    """Seconds of a step by its number of rows, measured on the engine's own model."""

    def __init__(self, seconds_of: dict[int, float]) -> None:
        self._known = sorted(seconds_of.items())

    @classmethod
    def measured(cls, run: Callable[[int], object], max_rows: int, repeats: int = 3) -> StepCosts:
        """Run steps of 1, 2, 4... rows up to `max_rows` and keep the fastest of each size."""
        found: dict[int, float] = {}
        rows = 1
        while rows <= max_rows:
            run(rows)
            found[rows] = min(_timed(run, rows) for _ in range(repeats))
            rows *= 2
        return cls(found)

    def seconds(self, rows: int) -> float:
        """Return the time of a step, interpolated or extrapolated linearly from what was measured."""
        known = self._known
        if len(known) == 1:
            return known[0][1] * rows
        after = next((i for i, (size, _) in enumerate(known) if size >= rows), len(known) - 1)
        (r1, s1), (r2, s2) = known[max(0, after - 1)], known[max(1, after)]
        return s1 + (s2 - s1) * (rows - r1) / (r2 - r1)


def decide(costs: StepCosts, rows: int, drafts: Sequence[tuple[int, float]]) -> bool:
    """Whether to compute drafts (length and acceptance rate of each) along with `rows` rows."""
    extra = sum(length for length, _ in drafts)
    if not extra:
        return False
    gained = sum(expected(acceptance, length) for length, acceptance in drafts)
    plain = rows / costs.seconds(rows)
    return (rows + gained) / costs.seconds(rows + extra) > GAIN * plain


def _timed(run: Callable[[int], object], rows: int) -> float:
    began = time.perf_counter()
    run(rows)
    return time.perf_counter() - began
