"""Divides weights among servers: the concatenated weights are cut into equal parts, at row boundaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from windlass.parallel.param_shard import Slice

Division = list[dict[str, Slice]]
"""For each server, its slice of every weight that it holds a part of."""


def divide_weights(shapes: Mapping[str, Sequence[int]], servers: int) -> Division:
    """Divide weights among servers: equally many values each, to within half a row at each end.

    A part of a large matrix is a block of its rows; no server has two slices of one weight.
    """
    total, begin = sum(math.prod(shape) for shape in shapes.values()), 0
    division: Division = [{} for _ in range(servers)]
    for name, shape in shapes.items():
        width = math.prod(shape[1:])
        boundaries = [_row(total * n / servers - begin, width, shape[0]) for n in range(servers + 1)]
        boundaries[-1] = shape[0]
        for number, (first, until) in enumerate(pairwise(boundaries)):
            if first < until:
                division[number][name] = Slice(((first, until), *((0, size) for size in shape[1:])))
        begin += math.prod(shape)
    return division


def _row(value: float, width: int, rows: int) -> int:
    """Return the row boundary nearest to a value of a matrix."""
    return min(rows, max(0, round(value / width)))
