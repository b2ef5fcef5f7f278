"""Fits the constants of serving engines to measured times.

Input: measured rows. Output: constants of each engine. They are fitted to logarithms, so that twice too
slow and twice too fast count the same; the fit of all engines is the prior of each, so that few rows do not
mislead it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from windlass.lab.planner.serving_rows import Measured
from windlass.plan.serving.fitted_constants import NAMES, Reach
from windlass.plan.serving.times import ClosedLoop, ForwardPass, Latency, latency_of
from windlass.spec.errors import BadInput

Floats = npt.NDArray[np.float64]

START = Reach(0.5, 0.4, 0.6, 3e-5, 3e-5, 5e-6, 0.03, 0.8, 0.3)
BOUNDS = {
    "compute": (0.05, 0.75),
    "grouped": (0.05, 0.75),
    "bandwidth": (0.1, 1.0),
    "layer_s": (1e-6, 5e-4),
    "sparse_s": (1e-6, 5e-4),
    "hop_s": (1e-7, 5e-5),
    "request_s": (1e-3, 0.5),
    "stolen": (0.05, 1.5),
    "bunched": (1e-3, 1.5),
}
PULL = 0.3
"""Weight of the prior: distance of a constant's logarithm from that of all engines, in row errors."""


def fit(rows: Sequence[Measured]) -> dict[str, Reach]:
    """Return the constants of each engine in the rows."""
    if not rows:
        raise BadInput("no row of the file can be predicted, so nothing can be fitted")
    shared = _fitted(rows, START, pull=0.01)
    engines = sorted({row.engine for row in rows})
    return {name: _fitted([r for r in rows if r.engine == name], shared, PULL) for name in engines}


def _fitted(rows: Sequence[Measured], start: Reach, pull: float) -> Reach:
    """Least squares of logarithms with a soft loss: some rows were measured while the engine thrashed."""
    from scipy.optimize import least_squares

    crowd = _stacked(rows)
    first = np.log([row.first_s for row in rows])
    token = np.log([row.token_s for row in rows])
    centre = np.log([getattr(start, name) for name in NAMES])
    low, high = np.log([BOUNDS[name] for name in NAMES]).T

    def errors(theta: Floats) -> Floats:
        times: Latency = latency_of(crowd, _reach(theta))
        drawn = pull * np.sqrt(len(rows)) * (theta - centre)
        return np.concatenate([np.log(times.first_s) - first, np.log(times.token_s) - token, drawn])

    begin = np.clip(centre, low + 1e-6, high - 1e-6)
    found = least_squares(errors, begin, bounds=(low, high), loss="soft_l1", f_scale=0.2)
    return _reach(found.x)


def _reach(theta: Floats) -> Reach:
    return Reach(**{name: float(value) for name, value in zip(NAMES, np.exp(theta), strict=True)})


def _stacked(rows: Sequence[Measured]) -> ClosedLoop:
    """Stack the rows into one ClosedLoop of arrays."""
    crowds = [row.crowd for row in rows]

    def passes(name: str) -> ForwardPass:
        found = [getattr(one, name) for one in crowds]
        return ForwardPass(
            **{f.name: np.array([float(getattr(p, f.name)) for p in found]) for f in fields(ForwardPass)}
        )

    def numbers(name: str) -> Floats:
        return np.array([float(getattr(one, name)) for one in crowds])

    plain = {name: numbers(name) for name in ("output", "running", "waiting", "stages")}
    return ClosedLoop(**plain, prefill=passes("prefill"), decode=passes("decode"))
