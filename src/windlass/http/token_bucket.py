"""A token bucket in memory: at most `capacity` at once, and `per_s` a second in the long run."""

from __future__ import annotations


class TokenBucket:
    """Fills with time, and by `add`; every `take` costs 1. It begins full."""

    def __init__(self, capacity: float, per_s: float) -> None:
        self._capacity, self._per_s = capacity, per_s
        self._left = capacity
        self._at_s = 0.0

    def add(self, amount: float) -> None:
        self._left = min(self._capacity, self._left + amount)

    def take(self, now_s: float) -> bool:
        """Take 1 if there is that much; return whether there was."""
        self._fill(now_s)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def is_full(self, now_s: float) -> bool:
        """Return whether a new bucket would be no different."""
        self._fill(now_s)
        return self._left >= self._capacity

    def _fill(self, now_s: float) -> None:
        self.add(max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
