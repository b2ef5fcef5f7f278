"""Discounts of modified Kneser-Ney smoothing (Chen and Goodman 1998).

Discounts of an order follow from how many of its n-grams have the counts 1, 2, 3 and 4 (equation 26
there). Little or artificial text may have none of these; then fixed discounts are used, as KenLM's
--discount_fallback does, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Discounts:
    """The discounts of counts of 1, of 2, and of 3 and more."""

    amounts: tuple[float, float, float]
    why_fallback: str | None = None

    def of(self, counts: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the discount of each count; 0 for 0."""
        return np.array([0.0, *self.amounts])[np.minimum(counts, np.uint64(3)).astype(np.int64)]


def discounts_of(counts_of_counts: tuple[int, int, int, int]) -> Discounts:
    """Return the discounts of an order in which so many n-grams have the counts 1, 2, 3 and 4."""
    missing = [str(i) for i, n in enumerate(counts_of_counts[:3], start=1) if not n]
    if missing:
        return Discounts(FALLBACK, f"none has the count {' or '.join(missing)}")
    n1, n2, n3, n4 = counts_of_counts
    y = n1 / (n1 + 2 * n2)
    amounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    out = [f"{d:.3g} from {i}" for i, d in enumerate(amounts, start=1) if not 0 < d <= i]
    if out:
        return Discounts(FALLBACK, f"the formula gives an impossible discount of {out[0]}")
    return Discounts(amounts)
