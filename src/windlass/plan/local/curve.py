"""Lines and curves through measured points; curves are straight between them on logarithmic axes.

Times grow by powers of sizes, so between two sizes a power is drawn. Below the smallest size a time stays
what it is there, because starting the work is all that is left; above the largest it grows in proportion.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import median

Point = tuple[float, float]


class CostCurve:
    """Seconds as a function of a size."""

    def __init__(self, points: Iterable[Point]) -> None:
        best: dict[float, float] = {}
        for size, seconds in points:
            best[size] = min(seconds, best.get(size, math.inf))
        self._sizes = sorted(best)
        self._seconds = [max(best[size], 1e-12) for size in self._sizes]
        if not self._sizes or self._sizes[0] <= 0:
            raise ValueError("a curve needs points of sizes above 0")

    def __call__(self, size: float) -> float:
        sizes, seconds = self._sizes, self._seconds
        if size <= sizes[0]:
            return seconds[0]
        if size >= sizes[-1]:
            return seconds[-1] * size / sizes[-1]
        right = bisect_right(sizes, size)
        share = math.log(size / sizes[right - 1]) / math.log(sizes[right] / sizes[right - 1])
        return float(seconds[right - 1] ** (1 - share) * seconds[right] ** share)


class LinearCost:
    """Seconds that start with something and then grow in proportion to a size.

    The start is that of the smallest point, the ratio is the median of all others: the noise of one does not
    bend it, as it would a curve.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        smallest, *others = sorted(points)
        size, seconds = smallest
        ratios = [(later - seconds) / (larger - size) for larger, later in others if larger > size]
        self._ratio = max(0.0, median(ratios)) if ratios else seconds / size
        self._start = max(0.0, seconds - self._ratio * size)

    def __call__(self, size: float) -> float:
        return self._start + self._ratio * size


class RateTable:
    """A rate as a function of several sizes; outside of what was measured it is that of the nearest edge.

    Corners that were not measured have the rate of the nearest smaller one along the first axis that has any.
    """

    def __init__(self, points: Mapping[tuple[int, ...], float]) -> None:
        self._axes = [sorted({size[axis] for size in points}) for axis in range(len(next(iter(points))))]
        self._rates = {corner: self._known(points, corner) for corner in product(*self._axes)}

    def __call__(self, *sizes: float) -> float:
        places = [_between(axis, size) for axis, size in zip(self._axes, sizes, strict=True)]
        total = 0.0
        for corner in product(*places):
            weight = math.prod(share for _, share in corner)
            total += weight * math.log(self._rates[tuple(size for size, _ in corner)])
        return math.exp(total)

    def _known(self, points: Mapping[tuple[int, ...], float], corner: tuple[int, ...]) -> float:
        if corner in points:
            return points[corner]
        for at, axis in enumerate(self._axes):
            for smaller in reversed(axis[: axis.index(corner[at])]):
                near = (*corner[:at], smaller, *corner[at + 1 :])
                if near in points:
                    return points[near]
        return max(points.values())


def _between(axis: Sequence[int], size: float) -> list[tuple[int, float]]:
    """Return the neighbours of a size on an axis, each with how much it counts."""
    if size <= axis[0]:
        return [(axis[0], 1.0)]
    if size >= axis[-1]:
        return [(axis[-1], 1.0)]
    right = bisect_right(axis, size)
    left, next_ = axis[right - 1], axis[right]
    share = math.log(size / left) / math.log(next_ / left)
    return [(left, 1 - share), (next_, share)]
