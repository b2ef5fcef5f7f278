"""The Pareto front: points that no other point dominates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

P = TypeVar("P")


def front(points: Iterable[P], costs: Callable[[P], Sequence[float]]) -> list[P]:
    """Return the points that no other equals or betters in every cost and betters in one; in rising order.

    Sorted by their costs, a point can only be beaten by one before it, so one pass over the front suffices.
    Of points with equal costs the first is kept.
    """
    kept: list[tuple[tuple[float, ...], P]] = []
    for cost, point in sorted(((tuple(costs(p)), p) for p in points), key=lambda pair: pair[0]):
        if not any(all(a <= b for a, b in zip(other, cost, strict=True)) for other, _ in kept):
            kept.append((cost, point))
    return [point for _, point in kept]
