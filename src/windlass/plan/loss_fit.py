"""Fits the law of loss to runs that were made.

Input: a few runs (weights, tokens, validation loss) and a prior of the law. Output: the most likely law, and
laws drawn from the posterior, from which intervals follow.

Residuals are those of the logarithm under Huber's loss, as in Hoffmann et al. 2022 (arXiv:2203.15556, section
3.3). The priors are residuals too, in units of their spread, so few runs change them little and many
override them. The posterior is normal around the best (Laplace's approximation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windlass.plan.loss import BESIROGLU, PUBLISHED_VOCABULARY, Law

HUBER = 1.345
"""In units of the noise; beyond it a run is rather an outlier (Huber 1964)."""
DRAWS = 400
WITHIN = 0.9
"""The share of outcomes that intervals are meant to hold."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LossPoint:
    """One finished run."""

    weights: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class Belief:
    """The prior of one number: its middle and its spread."""

    middle: float
    spread: float


@dataclass(frozen=True)
class Prior:
    """The prior of the law; of the logarithm where a number must be positive.

    Powers: fits of Kaplan et al. 2020, Hoffmann et al. 2022, Besiroglu et al. 2024 and Porian et al. 2024
    (arXiv:2406.19146) lie between 0.25 and 0.5.
    """

    floor: Belief = Belief(math.log(BESIROGLU.floor), 0.25)
    size_power: Belief = Belief(0.35, 0.07)
    data_power: Belief = Belief(0.35, 0.07)
    sharpness: Belief = Belief(0.0, 0.1)
    ceiling: float = math.inf
    noise: float = 0.005
    """How far equal runs with other seeds lie apart, as a share of the loss."""

    @staticmethod
    def of_vocabulary(vocabulary: int) -> Prior:
        """For small runs, which are sharper between size and data than the published ones.

        A token of a larger vocabulary stands for more text, about with its logarithm. Powers may differ more
        than those of large runs do: pilots left out in turn are foretold best so (docs/planner.md).
        """
        ceiling = math.log(vocabulary)
        floor = BESIROGLU.floor * ceiling / math.log(PUBLISHED_VOCABULARY)
        return Prior(
            floor=Belief(math.log(floor), 0.35),
            size_power=Belief(0.33, 0.1),
            data_power=Belief(0.33, 0.1),
            sharpness=Belief(math.log(2.0), 0.5),
            ceiling=ceiling,
        )


@dataclass(frozen=True)
class LossEstimate:
    """A loss, and the interval that should hold nine of ten outcomes."""

    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class LossFit:
    """The law that explains the points best, and others that may be true."""

    law: Law
    possible: tuple[Law, ...] = field(repr=False)
    noise: float
    """What the law leaves unexplained of a usual point, as a share of the loss."""

    def predict(self, weights: float, tokens: float) -> LossEstimate:
        losses = np.array([law.loss(weights, tokens) for law in self.possible])
        noisy = losses * np.exp(np.random.default_rng(0).normal(0.0, self.noise, len(losses)))
        low, high = np.quantile(noisy, [(1 - WITHIN) / 2, (1 + WITHIN) / 2])
        loss = self.law.loss(weights, tokens)
        return LossEstimate(loss, min(loss, float(low)), max(loss, float(high)))


def fit_law(points: Sequence[LossPoint], prior: Prior) -> LossFit:
    """Return the most likely law. The search starts from several powers, and the best end counts."""
    from scipy.optimize import least_squares  # half a second that plans without pilots can do without

    frame = _Frame(points, prior)
    ends = [least_squares(frame.residuals, frame.start(power)) for power in (0.2, 0.35, 0.6)]
    best = min(ends, key=lambda end: float(end.cost))
    misfit = np.log([frame.law(best.x).loss(p.weights, p.tokens) / p.loss for p in points])
    noise = max(
        prior.noise, 1.4826 * float(np.median(np.abs(misfit)))
    )  # of a normal error; outliers do not count
    covariance = np.linalg.inv(best.jac.T @ best.jac) * (noise / prior.noise) ** 2
    drawn = np.random.default_rng(0).multivariate_normal(best.x, covariance, DRAWS)
    return LossFit(frame.law(best.x), tuple(frame.law(v) for v in drawn), noise)


class _Frame:
    """The law as a vector of six numbers without bounds.

    The two terms are given by what they are at the middle of the points, because scales and powers of the law
    as it is written hang together so closely that no search ends.
    """

    def __init__(self, points: Sequence[LossPoint], prior: Prior) -> None:
        self._points, self._prior = points, prior
        self._weights = math.exp(float(np.mean([math.log(p.weights) for p in points])))
        self._tokens = math.exp(float(np.mean([math.log(p.tokens) for p in points])))
        self._logs = np.log([p.loss for p in points])
        middle = float(np.exp(np.mean(self._logs)))
        self._term = Belief(math.log(max(0.1, middle - math.exp(prior.floor.middle)) / 2), 1.5)

    def start(self, power: float) -> Vector:
        term = self._term.middle
        sharpness = self._prior.sharpness.middle
        return np.array([self._prior.floor.middle, term, power, term, power, sharpness])

    def law(self, v: Vector) -> Law:
        floor, size, data = (math.exp(v[i]) for i in (0, 1, 3))
        size_power, data_power = max(0.01, float(v[2])), max(0.01, float(v[4]))
        return Law(
            floor=min(floor, 0.99 * self._prior.ceiling),
            size_scale=size * self._weights**size_power,
            size_power=size_power,
            data_scale=data * self._tokens**data_power,
            data_power=data_power,
            sharpness=math.exp(v[5]),
            ceiling=self._prior.ceiling,
        )

    def residuals(self, v: Vector) -> Vector:
        law, prior = self.law(v), self._prior
        seen = np.log([law.loss(p.weights, p.tokens) for p in self._points]) - self._logs
        believed = [
            _apart(v[0], prior.floor),
            _apart(v[1], self._term),
            _apart(v[2], prior.size_power),
            _apart(v[3], self._term),
            _apart(v[4], prior.data_power),
            _apart(v[5], prior.sharpness),
        ]
        return np.concatenate([_hubered(seen / prior.noise), believed])


def _apart(value: float, belief: Belief) -> float:
    return (value - belief.middle) / belief.spread


def _hubered(residuals: Vector) -> Vector:
    """Return residuals whose squares are Huber's loss of the given ones."""
    size = np.abs(residuals)
    far = np.sqrt(np.maximum(2 * HUBER * size - HUBER**2, 0.0))
    return np.asarray(np.sign(residuals) * np.where(size <= HUBER, size, far))
