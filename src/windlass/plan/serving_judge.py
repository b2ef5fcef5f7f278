"""Fits the constants of serving engines, and says how wrong they are on what they have not seen.

Input: measured rows. Output: constants of each engine, and errors with each system, then each model, left out
of the fit in turn. Constants are fitted to logarithms, so that being twice too slow and twice too fast
count the same; each engine is drawn towards the fit of all of them, so that few rows do not lead it astray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.plan.serving import Crowd, Latency, Pass, latency_of
from windlass.plan.serving_known import NAMES, Reach, reach_of
from windlass.plan.serving_rows import Measured, read_serving_rows
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
WORST = 5
PULL = 0.3
"""Weight of a constant's distance (of its logarithm) from that of all engines, in rows' errors."""


@dataclass(frozen=True)
class Prediction:
    """One row, predicted by constants that were fitted without its system or model."""

    row: Measured
    first_s: float
    token_s: float

    @property
    def first_error(self) -> float:
        return abs(self.first_s / self.row.first_s - 1)

    @property
    def token_error(self) -> float:
        return abs(self.token_s / self.row.token_s - 1)


@dataclass(frozen=True)
class Judgement:
    """How wrong predictions are on systems and models that the constants were fitted without."""

    known: dict[str, Reach]
    """Fitted to all rows."""
    errors: dict[str, dict[str, dict[str, float]]]
    """What was left out ("system", "model"), its name, figures."""
    skipped: dict[str, int]
    worst: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        engines = {name: asdict(reach) for name, reach in self.known.items()}
        return {"errors": self.errors, "skipped": self.skipped, "worst": self.worst, "engines": engines}


def judge(path: Path) -> Judgement:
    """Predict every row of a file, with its system, then its model, left out of the fit."""
    rows = read_serving_rows(path)
    by_system = left_out(rows.used, lambda row: row.system)
    by_model = left_out(rows.used, lambda row: row.model)
    errors = {
        "system": _grouped(by_system, lambda row: row.system),
        "model": _grouped(by_model, lambda row: row.model),
    }
    worst = sorted(by_system, key=lambda one: one.token_error, reverse=True)[:WORST]
    told = tuple(f"{one.row.label} (each token {one.token_error:.0%} off)" for one in worst)
    return Judgement(fit(rows.used), errors, rows.skipped, told)


def fit(rows: Sequence[Measured]) -> dict[str, Reach]:
    """Return constants of each engine that the rows name."""
    if not rows:
        raise BadInput("no row of the file can be predicted, so nothing can be fitted")
    shared = _fitted(rows, START, pull=0.01)
    engines = sorted({row.engine for row in rows})
    return {name: _fitted([r for r in rows if r.engine == name], shared, PULL) for name in engines}


def left_out(rows: Sequence[Measured], by: Callable[[Measured], str]) -> list[Prediction]:
    """Predict every group of rows by what all others teach."""
    found = list[Prediction]()
    for group in sorted({by(row) for row in rows}):
        others = [row for row in rows if by(row) != group]
        if others:
            found += predict([row for row in rows if by(row) == group], fit(others))
    return found


def _grouped(found: list[Prediction], by: Callable[[Measured], str]) -> dict[str, dict[str, float]]:
    groups = {
        name: [one for one in found if by(one.row) == name] for name in sorted({by(o.row) for o in found})
    }
    return {name: _figures(group) for name, group in {**groups, "all": found}.items() if group}


def _figures(group: list[Prediction]) -> dict[str, float]:
    first = [one.first_error for one in group]
    token = [one.token_error for one in group]
    return {
        "rows": len(group),
        "ttft_mape": float(np.mean(first)),
        "ttft_median": float(np.median(first)),
        "tpot_mape": float(np.mean(token)),
        "tpot_median": float(np.median(token)),
    }


def predict(rows: Iterable[Measured], known: dict[str, Reach]) -> list[Prediction]:
    found = list[Prediction]()
    for row in rows:
        times = latency_of(row.crowd, reach_of(row.engine, known))
        found.append(Prediction(row, float(times.first_s), float(times.token_s)))
    return found


def _fitted(rows: Sequence[Measured], start: Reach, pull: float) -> Reach:
    """Least squares of logarithms with a soft loss, as some rows were measured while the engine thrashed."""
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


def _stacked(rows: Sequence[Measured]) -> Crowd:
    """Make one crowd of arrays out of many of numbers."""
    crowds = [row.crowd for row in rows]

    def passes(name: str) -> Pass:
        found = [getattr(one, name) for one in crowds]
        return Pass(**{f.name: np.array([float(getattr(p, f.name)) for p in found]) for f in fields(Pass)})

    def numbers(name: str) -> Floats:
        return np.array([float(getattr(one, name)) for one in crowds])

    plain = {name: numbers(name) for name in ("output", "running", "waiting", "stages")}
    return Crowd(**plain, prefill=passes("prefill"), decode=passes("decode"))
