"""A sequential test: its evidence stays valid however often it is checked.

A claim says that the mean of numbers between `low` and `high` is at most `bound`. A bettor against the claim
bets on every number before it is seen: 1 becomes the product of 1 + stake (number - bound).
Stakes stay below 1 / (bound - low), so the fortune stays positive; if the claim is true, whatever the
numbers depend on, its expectation never grows. By Ville's inequality the fortune then ever reaches 1 / alpha
with a probability of at most alpha, over all times together (Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting", 2024).

The best stake depends on what is not known, so the bettor divides the 1 among several and lets each grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

STAKES = (0.9, 0.6, 0.35, 0.2, 0.1, 0.05)
"""Shares of the largest stake. Dividing the money costs a factor of at most six, once."""


@dataclass(frozen=True)
class BoundedMean:
    """The mean of numbers between `low` and `high` is at most `bound`."""

    low: float
    high: float
    bound: float

    def __post_init__(self) -> None:
        assert self.low < self.bound < self.high

    @property
    def mirrored(self) -> BoundedMean:
        """The claim about the negatives of numbers: that their own mean is at least `-bound`."""
        return BoundedMean(-self.high, -self.low, -self.bound)

    @property
    def stakes(self) -> tuple[float, ...]:
        return tuple(part / (self.bound - self.low) for part in STAKES)


@dataclass(frozen=True)
class Evidence:
    """The evidence against a claim after some numbers."""

    claim: BoundedMean
    log_fortunes: tuple[float, ...] = (0.0,) * len(STAKES)
    count: int = 0
    total: float = 0.0
    peak: float = 1.0
    """The largest fortune so far: a refuted claim stays refuted."""

    @property
    def fortune(self) -> float:
        """The bettor's fortune: 1 at the start, large once the claim looks wrong."""
        largest = max(self.log_fortunes)
        return (
            math.exp(min(largest, 700.0))
            * sum(math.exp(f - largest) for f in self.log_fortunes)
            / len(STAKES)
        )

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def refutes(self, alpha: float) -> bool:
        """Whether the claim is refuted; wrongly so with a probability of at most alpha."""
        return self.peak * alpha >= 1.0

    def after(self, number: float) -> Evidence:
        """Return the evidence with one more number, which is clipped to the claim's range."""
        claim = self.claim
        number = min(claim.high, max(claim.low, number))
        grown = tuple(
            fortune + math.log1p(stake * (number - claim.bound))
            for fortune, stake in zip(self.log_fortunes, claim.stakes, strict=True)
        )
        later = replace(self, log_fortunes=grown, count=self.count + 1, total=self.total + number)
        return replace(later, peak=max(self.peak, later.fortune))
