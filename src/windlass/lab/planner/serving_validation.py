"""Validates serving predictions on systems and models left out of the fit.

Input: measured rows. Output: errors with each system, then each model, left out of the fit in turn; the
interval around a prediction that contains WANTED of the left-out rows, with bounds from other groups;
constants fitted to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.lab.planner.serving_fit import fit
from windlass.lab.planner.serving_rows import Measured, read_serving_rows
from windlass.plan.serving.fitted_constants import Reach, Spread, reach_of
from windlass.plan.serving.times import latency_of

Floats = npt.NDArray[np.float64]
Key = Callable[[Measured], str]

WORST = 5
WANTED = 0.8
LEVELS = (0.8, 0.83, 0.86, 0.89, 0.92, 0.95)
"""Share of rows inside the bounds; groups differ, so the bounds of some contain fewer rows of another."""


@dataclass(frozen=True)
class ServingPrediction:
    """One row, predicted with constants fitted without its system or model."""

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
    """Errors of predictions on systems and models left out of the fit."""

    known: dict[str, Reach]
    """Fitted to all rows."""
    errors: dict[str, dict[str, dict[str, float]]]
    """By what was left out ("system", "model"), then by its name: figures."""
    spread: Spread
    coverage: dict[str, float]
    """Share of unseen rows inside the interval, by predicted quantity."""
    skipped: dict[str, int]
    worst: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def judge(path: Path) -> Judgement:
    """Predict every row of a file, with its system, then its model, left out of the fit."""
    rows = read_serving_rows(path)
    keys: dict[str, Key] = {"system": lambda row: row.system, "model": lambda row: row.model}
    found = {name: left_out(rows.used, by) for name, by in keys.items()}
    errors = {name: _grouped(found[name], by) for name, by in keys.items()}
    worst = sorted(found["system"], key=lambda one: one.token_error, reverse=True)[:WORST]
    labels = tuple(f"{one.row.label} (each token {one.token_error:.0%} off)" for one in worst)
    first, held_first = _interval([_apart(found[n], by, "first_s") for n, by in keys.items()])
    token, held_token = _interval([_apart(found[n], by, "token_s") for n, by in keys.items()])
    coverage = {"first": held_first, "token": held_token}
    return Judgement(fit(rows.used), errors, Spread(first, token), coverage, rows.skipped, labels)


def _apart(found: list[ServingPrediction], by: Key, what: str) -> dict[str, Floats]:
    """Return the ratios of measured to predicted, by left-out group."""
    groups: dict[str, list[float]] = {}
    for one in found:
        ratio = getattr(one.row, what) / getattr(one, what)
        groups.setdefault(by(one.row), []).append(max(ratio, 1 / ratio))
    return {name: np.array(values) for name, values in groups.items()}


def _interval(kinds: list[dict[str, Floats]]) -> tuple[tuple[float, float], float]:
    """Return the narrowest interval that contains enough rows of unseen systems and models, and the share."""
    for level in LEVELS:
        held = min(_coverage(groups, level) for groups in kinds)
        if held >= WANTED:
            break
    factor = float(np.quantile(np.concatenate([v for groups in kinds for v in groups.values()]), level))
    return (1 / factor, factor), held


def _coverage(groups: dict[str, Floats], level: float) -> float:
    """Return the share of rows within the bounds from the other groups."""
    inside = 0
    for name, values in groups.items():
        others = [other for key, other in groups.items() if key != name]
        inside += int((values <= np.quantile(np.concatenate(others), level)).sum()) if others else 0
    return inside / sum(map(len, groups.values()))


def left_out(rows: Sequence[Measured], by: Key) -> list[ServingPrediction]:
    """Predict every group of rows with constants fitted to all others."""
    found = list[ServingPrediction]()
    for group in sorted({by(row) for row in rows}):
        others = [row for row in rows if by(row) != group]
        if others:
            found += predict([row for row in rows if by(row) == group], fit(others))
    return found


def _grouped(found: list[ServingPrediction], by: Key) -> dict[str, dict[str, float]]:
    groups = {
        name: [one for one in found if by(one.row) == name] for name in sorted({by(o.row) for o in found})
    }
    return {name: _figures(group) for name, group in {**groups, "all": found}.items() if group}


def _figures(group: list[ServingPrediction]) -> dict[str, float]:
    first = [one.first_error for one in group]
    token = [one.token_error for one in group]
    return {
        "rows": len(group),
        "ttft_mape": float(np.mean(first)),
        "ttft_median": float(np.median(first)),
        "tpot_mape": float(np.mean(token)),
        "tpot_median": float(np.median(token)),
    }


def predict(rows: Iterable[Measured], known: dict[str, Reach]) -> list[ServingPrediction]:
    found = list[ServingPrediction]()
    for row in rows:
        times = latency_of(row.crowd, reach_of(row.engine, known))
        found.append(ServingPrediction(row, float(times.first_s), float(times.token_s)))
    return found
