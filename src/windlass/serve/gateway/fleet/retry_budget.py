"""How often requests may be tried again: a part of what is asked for, so that retries cannot be a flood."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.1
"""Retries for each request."""
FLOOR_PER_S = 1.0
"""Retries that there are anyway, where little is asked for."""
MOST = 32.0


@dataclass
class RetryBudget:
    """Fills with every request and, slowly, with time; every retry takes 1."""

    left: float = MOST
    at: float = 0.0

    def earn(self) -> None:
        self.left = min(MOST, self.left + SHARE)

    def take(self, now: float) -> bool:
        """Tell whether one more retry is allowed, and count it."""
        self.left = min(MOST, self.left + max(0.0, now - self.at) * FLOOR_PER_S)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
