"""Fits the constants of the step-time model to measured rows.

Input: rows with a TrainingStep and seconds. Output: FittedConstants. Least squares on logarithms of predicted
over measured time: a long set of rows weighs no more than a short one, outliers (stalled runs) have no
influence, and every constant has a prior, which matters more the fewer rows depend on it. A generation of
software may differ from the default in a few constants, with a prior of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from windlass.lab.planner.rows import PublishedRow
from windlass.plan.cost.fitted_constants import NAMES, FittedConstants, StepConstants, documented
from windlass.plan.cost.step_inputs import stacked, step_inputs
from windlass.plan.cost.step_time import step_parts

DOUBT = {
    "product": 0.08, "shape": 0.4, "float8": 0.1, "float4": 0.15, "casts": 0.4, "experts": 0.2,
    "ep_exposed": 0.3, "flash": 0.25, "batched": 0.4,
    "softmax": 0.2, "elementwise": 0.4, "launch_s": 0.5, "eager": 0.3, "link": 0.1, "network": 0.25,
    "link_latency_s": 0.4, "network_latency_s": 0.5, "congestion": 0.5, "tp_exposed": 0.2,
    "tp_overlapped": 0.4,
    "dp_exposed": 0.3, "divided_exposed": 0.3, "gather_exposed": 0.7, "send_exposed": 0.7, "send_s": 0.5,
    "optimizer": 0.4, "straggle": 0.5, "step_s": 0.5,
}  # fmt: skip
"""Prior standard deviations of the logarithms of constants."""
OWN = {
    "product": 0.06, "elementwise": 0.15, "flash": 0.2, "launch_s": 0.3, "tp_exposed": 0.15,
    "dp_exposed": 0.3, "divided_exposed": 0.3, "gather_exposed": 0.5, "send_exposed": 0.5, "send_s": 0.3,
    "step_s": 0.7,
}  # fmt: skip
"""The same for a generation relative to the default, for the constants that may differ."""
NOISE = 0.05
"""Standard deviation of a good prediction's logarithm."""
FAR = 6.0
"""Standard deviations beyond which a row counts as an outlier (Welsch's loss)."""
SET_ROWS = 10
"""A set weighs at most as much as this many rows."""
SAMPLE = 120
"""Maximum rows of a set that are used, spread evenly over it."""
NUDGE = 1e-4


def fit(rows: Sequence[PublishedRow]) -> FittedConstants:
    """Return the constants that fit rows best."""
    return _Fit(sampled(rows)).solve()


def sampled(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Leave out rows of long sets, evenly, for speed."""
    counts, seen = Counter(row.set for row in rows), Counter[str]()
    sample = []
    for row in rows:
        if seen[row.set] % max(1, counts[row.set] // SAMPLE) == 0:
            sample.append(row)
        seen[row.set] += 1
    return sample


class _Fit:
    """The rows of one fit, and the map from a vector of logarithms to their predictions.

    The vector holds the default constants, then the factors of one generation after the other.
    """

    def __init__(self, rows: Sequence[PublishedRow]) -> None:
        cases = [row.case for row in rows if row.case is not None]
        self.inputs = stacked(step_inputs(case) for case in cases)
        self.measured = np.log([row.seconds or math.nan for row in rows])
        self.software = sorted({case.software for case in cases})
        self.place = np.array([self.software.index(case.software) for case in cases])
        counts = Counter(row.set for row in rows)
        self.weights = np.sqrt([min(1.0, SET_ROWS / counts[row.set]) for row in rows])
        factors = [documented().get(software, {}) for software in self.software]
        traits = np.log([[known.get(name, 1.0) for name in OWN] for known in factors])
        self.expected = np.concatenate(
            [np.log([getattr(StepConstants(), name) for name in NAMES]), traits.ravel()]
        )
        self.doubt = np.array([DOUBT[name] for name in NAMES] + [*OWN.values()] * len(self.software))

    def solve(self) -> FittedConstants:
        found = least_squares(self.residuals, self.expected, jac=self.slopes, max_nfev=60)
        default, own = self.split(found.x)
        factors = {s: _named(OWN, own[place]) for place, s in enumerate(self.software)}
        return FittedConstants(StepConstants(**_named(NAMES, default)), factors)

    def split(self, vector: Any) -> tuple[Any, Any]:
        values = np.exp(vector)
        return values[: len(NAMES)], values[len(NAMES) :].reshape(len(self.software), len(OWN))

    def residuals(self, vector: Any) -> Any:
        return np.concatenate([self.misses(vector), (vector - self.expected) / self.doubt])

    def misses(self, vector: Any) -> Any:
        default, own = self.split(vector)
        values = dict(zip(NAMES, default, strict=True))
        values |= {name: values[name] * own[self.place, i] for i, name in enumerate(OWN)}
        seconds = sum(step_parts(self.inputs, StepConstants(**values)).values())
        apart = (np.log(seconds) - self.measured) / NOISE
        return self.weights * np.sign(apart) * FAR * np.sqrt(-np.expm1(-((apart / FAR) ** 2)))

    def slopes(self, vector: Any) -> Any:
        """Finite differences; a factor is varied for all generations at once: their rows are disjoint."""
        at, rows = self.misses(vector), len(self.measured)
        slopes = np.zeros((rows + len(vector), len(vector)))
        for column in range(len(NAMES) + len(OWN)):
            nudged = vector.copy()
            nudged[column if column < len(NAMES) else slice(column, None, len(OWN))] += NUDGE
            slope = (self.misses(nudged) - at) / NUDGE
            if column < len(NAMES):
                slopes[:rows, column] = slope
            else:
                slopes[np.arange(rows), column + self.place * len(OWN)] = slope
        slopes[rows:] = np.diag(1 / self.doubt)
        return slopes


def _named(names: Any, values: Any) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
