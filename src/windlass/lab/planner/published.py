"""Validates predictions of step times on sources left out of the fit.

    rows -> leave each set out of the fit in turn -> predict it -> errors and whether intervals held

A set is one source: its clusters, software and conventions appear in no other, so the error on a left-out set
is the error to expect on a new cluster. A set counts if its rows give the sizes of the model and the
micro-batch; a row for which these were guessed is predicted and reported, but not counted. Intervals are
conformal: as wide as nine in ten errors of the other sets when left out; all sets weigh the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from windlass.lab.planner.fit_time import fit
from windlass.lab.planner.rows import PublishedRow, read_rows
from windlass.plan.cost.fitted_constants import FittedConstants, published
from windlass.plan.cost.step_time import step_time
from windlass.spec.protocol.progress import Progress, Report, silent

SHARED = Path("shared") / "planner" / "training_rows.csv"
APART = ("bigscience_v100",)
"""Reported, but neither counted nor fitted to: noisy by 40% in its authors' own words."""
ENOUGH = 4
"""Minimum number of the shipped sets in a file, to fit constants without each of them."""
COVERED = 0.9
NARROWEST = 1.25
"""Minimum factor of an interval to either side: ten sources are too few for a narrower one."""
LARGE = 512
"""Number of devices from which a row counts as large."""


@dataclass(frozen=True)
class RowPrediction:
    """A row, and its prediction without its set."""

    row: PublishedRow
    measured: float
    seconds: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.seconds / self.measured - 1

    @property
    def covered(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class PublishedSource:
    """One set."""

    rows: int
    predictions: tuple[RowPrediction, ...]
    """First rows with complete inputs, then rows with guessed inputs."""
    skipped: dict[str, int]
    counted: bool
    why: str
    """Why the set is not counted; empty if it is."""

    @property
    def whole(self) -> tuple[RowPrediction, ...]:
        return tuple(one for one in self.predictions if one.row.whole)


def find_rows() -> Path | None:
    """Return the path of the published rows, if ../shared exists."""
    places = (Path.cwd().parent, *Path(__file__).resolve().parents[5:6])
    return next((place / SHARED for place in places if (place / SHARED).is_file()), None)


def rows_to_fit(rows: Sequence[PublishedRow], shipped: Path | None) -> list[PublishedRow]:
    """Return the rows for fitting when `rows` are validated: only shipped sets.

    Without the published rows, the shipped sets in `rows` are used, if there are enough.
    """
    if shipped is not None:
        return read_rows(shipped)
    known = [row for row in rows if row.set in published().sets]
    return known if len({row.set for row in fitted_rows(known)}) >= ENOUGH else []


def fitted_rows(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Return the rows that constants are fitted to."""
    return [row for row in rows if row.whole and timed(row) and row.set not in APART]


def timed(row: PublishedRow) -> bool:
    return row.case is not None and row.outcome == "ok" and bool(row.seconds)


def folds(
    rows: Sequence[PublishedRow], sets: Sequence[str], report: Report = silent
) -> dict[str, FittedConstants]:
    """Return for each set the constants and the interval fitted without it."""
    training = fitted_rows(rows)
    found: dict[str, FittedConstants] = {}
    for done, name in enumerate(sets):
        report(Progress("fit", done, len(sets), "sets"))
        found[name] = fit([row for row in training if row.set != name])
    report(Progress("fit", len(sets), len(sets), "sets"))
    logs = {name: logarithms([row for row in training if row.set == name], found[name]) for name in sets}
    return {name: with_interval(known, without(logs, name)) for name, known in found.items()}


def refitted(rows: Sequence[PublishedRow], left_out: Mapping[str, FittedConstants]) -> FittedConstants:
    """Return constants fitted to all sets, with the interval from left-out sets."""
    training = fitted_rows(rows)
    logs = [
        logarithms([row for row in training if row.set == name], known) for name, known in left_out.items()
    ]
    known = with_interval(fit(training), [found for found in logs if len(found)])
    return replace(known, sets=tuple(sorted({row.set for row in training})))


def without(logs: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    return [found for other, found in logs.items() if other != name and len(found)]


def logarithms(rows: Sequence[PublishedRow], known: FittedConstants) -> np.ndarray:
    """Return the logarithms of measured over predicted."""
    return np.array(
        [np.log((row.seconds or 0) / step_time(row.case, known).seconds) for row in rows if row.case]
    )


def with_interval(known: FittedConstants, logs: Sequence[np.ndarray]) -> FittedConstants:
    """Set the factors that contain nine in ten errors; every set weighs the same."""
    if not logs:
        return known
    values = np.concatenate(logs)
    weights = np.concatenate([np.full(len(found), 1 / len(found)) for found in logs]) / len(logs)
    order = np.argsort(values)
    sorted_values, places = values[order], np.cumsum(weights[order])
    tail = (1 - COVERED) / 2
    first, last = (float(np.interp(place, places, sorted_values)) for place in (tail, 1 - tail))
    return replace(known, low=min(math.exp(first), 1 / NARROWEST), high=max(math.exp(last), NARROWEST))


def judge(
    rows: Sequence[PublishedRow], left_out: Mapping[str, FittedConstants]
) -> dict[str, PublishedSource]:
    """Predict every row that can be predicted, with the constants of its set, else with the shipped ones."""
    sets = sorted({row.set for row in rows})
    return {
        name: _source([r for r in rows if r.set == name], left_out.get(name) or published()) for name in sets
    }


def _source(rows: Sequence[PublishedRow], known: FittedConstants) -> PublishedSource:
    usable = sorted((row for row in rows if timed(row)), key=lambda row: not row.whole)
    name, whole = rows[0].set, sum(row.whole for row in usable)
    why = "noisy by 40% in its authors' own words" if name in APART else ""
    if name in known.sets:
        why = "the constants were fitted to it, and the other sets are not here to fit without it"
    if not whole:
        why = "no row with complete inputs and a measured time"
    return PublishedSource(
        rows=len(rows),
        predictions=tuple(predict(row, known) for row in usable),
        skipped=dict(Counter(_reason(row) for row in rows if not timed(row))),
        counted=not why,
        why=why,
    )


def predict(row: PublishedRow, known: FittedConstants) -> RowPrediction:
    assert row.case is not None
    assert row.seconds
    found = step_time(row.case, known)
    return RowPrediction(row, row.seconds, found.seconds, found.low, found.high)


def _reason(row: PublishedRow) -> str:
    if row.case is None:
        return row.why
    return "no measured time" if row.outcome == "ok" else f"did not run ({row.outcome})"


def mape(predictions: Sequence[RowPrediction]) -> float | None:
    """Return the mean absolute relative error; None without predictions."""
    return sum(abs(one.error) for one in predictions) / len(predictions) if predictions else None
