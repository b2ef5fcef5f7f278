"""Who computes how many tokens in a step, and who holds which slot."""

from __future__ import annotations

from collections.abc import Sequence as Listed

from windlass.serve.engine.cache import SlottedCache
from windlass.serve.engine.sequence import Sequence

OLDEST_SHARE = 4


def decide_chunks(remaining: Listed[int], budget: int) -> list[int]:
    """Return how many prompt tokens each sequence computes in this step, `budget` of them at most.

    `remaining` is in order of arrival. The shortest go first, because that makes the mean wait least; the
    oldest is sure of a quarter of the budget, so a long prompt is never starved by short ones.
    """
    given = [0] * len(remaining)
    if remaining:
        given[0] = min(remaining[0], max(1, budget // OLDEST_SHARE), budget)
    left = budget - sum(given)
    for place in sorted(range(len(remaining)), key=lambda place: remaining[place]):
        more = min(left, remaining[place] - given[place])
        given[place] += more
        left -= more
    return given


class Roster:
    """The sequences that hold slots: those that decode first, then those whose prompt is being read.

    A sequence's place in the list is its slot. Every change keeps both runs without gaps, moving at most
    two sequences.
    """

    def __init__(self, cache: SlottedCache) -> None:
        self._cache = cache
        self.running: list[Sequence] = []
        self.decoding_count = 0
        self._arrived: list[Sequence] = []

    @property
    def decoding(self) -> list[Sequence]:
        return self.running[: self.decoding_count]

    @property
    def reading(self) -> list[Sequence]:
        """Sequences whose prompt is being read, in order of arrival."""
        return self._arrived

    def admit(self, sequence: Sequence) -> None:
        sequence.slot = len(self.running)
        self.running.append(sequence)
        self._arrived.append(sequence)

    def promote(self, sequence: Sequence) -> None:
        """Let a sequence whose prompt is read decode from the next step on."""
        self._arrived.remove(sequence)
        self._swap(sequence.slot, self.decoding_count)
        self.decoding_count += 1

    def remove(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, finished or not."""
        sequence.cached = 0
        if sequence.slot < self.decoding_count:
            self.decoding_count -= 1
            self._swap(sequence.slot, self.decoding_count)
        else:
            self._arrived.remove(sequence)
        self._swap(sequence.slot, len(self.running) - 1)
        self.running.pop()

    def _swap(self, one: int, two: int) -> None:
        if one == two:
            return
        a, b = self.running[one], self.running[two]
        if a.cached or b.cached:
            self._cache.exchange(one, a.cached, two, b.cached)
        self.running[one], self.running[two] = b, a
        a.slot, b.slot = two, one
