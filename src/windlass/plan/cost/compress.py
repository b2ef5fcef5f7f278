"""The loss that compression adds to a trained model: 8 bits, 4 bits or zeros.

Published perplexities before and after (tables/compression.toml) give the loss that is added, ln(after /
before). It grows with the tokens that a model has seen and falls with its size, as powers of both: a weight
that has learned more has more to lose (Kumar et al. 2024, arXiv:2411.04330, section 3). The power of the
tokens is theirs, because published families differ in too much else to find it again; level and power of the
size are fitted. The interval is that of the line for another model (90%), wide where points are few or far.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from windlass.plan.cost.storage import served_bytes

MIN_ADDED = 0.005
"""Nats; less is within the noise of an evaluation, and some published differences are even negative."""
TOKENS_POWER = 0.51
NORMAL_QUANTILE = 1.645


@dataclass(frozen=True)
class CompressionPoint:
    """One model before and after."""

    weights: float
    tokens: float
    before: float
    after: float

    @property
    def added(self) -> float:
        return max(MIN_ADDED, math.log(self.after / self.before))


@dataclass(frozen=True)
class Method:
    """A compression method, with published measurements."""

    name: str
    how: str
    source: str
    bits: float
    zeros: float
    points: tuple[CompressionPoint, ...]


@dataclass(frozen=True)
class Compressed:
    """A model after compression."""

    method: Method
    loss: float
    low: float
    high: float
    served_bytes: float


@cache
def methods() -> dict[str, Method]:
    """Return the methods by name."""
    text = files("windlass.plan").joinpath("tables/compression.toml").read_text(encoding="utf-8")
    found = [
        Method(**{**row, "points": tuple(CompressionPoint(*point) for point in row["points"])})
        for row in tomllib.loads(text)["methods"]
    ]
    return {method.name: method for method in found}


def compress(method: Method, weights: float, tokens: float, loss: float) -> Compressed:
    """Predict a model of `weights` trained on `tokens`, whose loss is `loss`, after compression."""
    middle, spread = added_loss(method.points, weights, tokens)
    return Compressed(
        method=method,
        loss=loss + middle,
        low=loss + middle / spread,
        high=loss + middle * spread,
        served_bytes=served_bytes(weights, method.bits, method.zeros),
    )


def added_loss(points: Sequence[CompressionPoint], weights: float, tokens: float) -> tuple[float, float]:
    """Return the loss that compression adds, and the factor to both sides of it that bounds the interval."""
    sizes = np.array([math.log(point.weights) for point in points])
    added = np.array([math.log(point.added) - TOKENS_POWER * math.log(point.tokens) for point in points])
    slope, level = np.polyfit(sizes, added, 1)
    left = added - (level + slope * sizes)
    freedom = len(points) - 2
    away = (math.log(weights) - sizes.mean()) ** 2 / ((sizes - sizes.mean()) ** 2).sum()
    error = math.sqrt(float(left @ left) / freedom * (1 + 1 / len(points) + away))
    middle = math.exp(level + slope * math.log(weights) + TOKENS_POWER * math.log(tokens))
    return max(MIN_ADDED, middle), math.exp(_student(freedom) * error)


def _student(freedom: int) -> float:
    """Return the 95% quantile of Student's distribution (Abramowitz and Stegun 1964, 26.7.5, two terms)."""
    z = NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
