"""How many retries are allowed: a share of the requests, so that retries cannot cause an overload."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.1
"""Retries per request."""
FLOOR_PER_S = 1.0
"""Minimum rate of retries, for times with few requests."""
CAPACITY = 32.0


@dataclass
class RetryBudget:
    """Fills with every request and, slowly, with time; every retry takes 1."""

    left: float = CAPACITY
    at: float = 0.0

    def earn(self) -> None:
        self.left = min(CAPACITY, self.left + SHARE)

    def take(self, now: float) -> bool:
        """Return whether one more retry is allowed, and count it."""
        self.left = min(CAPACITY, self.left + max(0.0, now - self.at) * FLOOR_PER_S)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
