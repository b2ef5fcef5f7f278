"""Validates memory predictions on sources left out of the fit, and predictions of out-of-memory failures.

Input: published rows (rows.py). Output: a MemoryVerdict. Each set is predicted with constants fitted to the
others, and with an interval from the errors of those when they were left out themselves (fit_memory.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from windlass.lab.planner.fit_memory import (
    APART,
    Measured,
    as_measured,
    errors,
    interval,
    is_measured,
    measured_rows,
    without,
)
from windlass.lab.planner.rows import PublishedRow
from windlass.plan.cost.activations import cannot_run
from windlass.plan.cost.device_memory import device_memory, fits
from windlass.plan.cost.fitted_memory import FittedMemory
from windlass.plan.cost.step_config import TrainingStep

OUT = ("oom", "oom_or_crash")
FAR_BELOW = 0.5
"""A failed step with a predicted share of device memory below this did not run out of memory."""


@dataclass(frozen=True)
class SetErrors:
    """Errors on one source, predicted without it."""

    rows: int
    skipped: dict[str, int]
    mape: float
    coverage: float
    worst: tuple[tuple[str, float, float], ...]
    """Label, predicted and measured bytes."""


@dataclass(frozen=True)
class Shortage:
    """Rows that ran out of memory, or failed for another reason, against those that ran."""

    labelled: int
    labelled_called_fit: int
    crashed: int
    """Rows labelled as out of memory that cannot have run out of memory (`crashed`)."""
    short: int
    short_called_fit: int
    ran: int
    ran_called_short: int

    @property
    def oom_called_fit(self) -> float:
        """Share of the rows that can have run out of memory."""
        return self.short_called_fit / max(1, self.short)

    @property
    def labelled_oom_called_fit(self) -> float:
        return self.labelled_called_fit / max(1, self.labelled)

    @property
    def ok_called_oom(self) -> float:
        return self.ran_called_short / max(1, self.ran)


@dataclass(frozen=True)
class MemoryVerdict:
    """The result of the memory validation."""

    memory_mape: float
    """Mean over the sets that count."""
    coverage: float
    sets: dict[str, SetErrors]
    shortage: Shortage


def judge_memory(
    rows: Sequence[PublishedRow], known: FittedMemory | None = None, training: Sequence[PublishedRow] = ()
) -> MemoryVerdict:
    """Validate every set with constants fitted to the others of `training`, or with `known` if given.

    Without `training`, the validated rows are also used for fitting.
    """
    measured = measured_rows(rows)
    folds = {row.set: known for row in rows} if known else _folds(rows, measured_rows(training or rows))
    sets = {name: _errors(name, rows, found, folds[name]) for name, found in sorted(measured.items())}
    counted = [found for name, found in sets.items() if name not in APART]
    return MemoryVerdict(
        memory_mape=_mean([found.mape for found in counted]),
        coverage=_mean([found.coverage for found in counted]),
        sets=sets,
        shortage=_shortage(rows, folds),
    )


def _folds(rows: Sequence[PublishedRow], measured: Measured) -> dict[str, FittedMemory]:
    """Return the fit without each set; sets without measurements get the fit to all others."""
    everything = without("", measured)
    known = {row.set: everything for row in rows}
    known |= {name: without(name, measured) for name in measured}
    logs = {name: errors(found, known[name]) for name, found in measured.items() if name not in APART}
    for name, fold in known.items():
        others = [found for other, found in logs.items() if other != name]
        known[name] = replace(fold, constants=interval(fold.constants, others))
    return known


def crashed(row: PublishedRow, ran: Mapping[tuple[object, ...], int], known: FittedMemory) -> bool:
    """Whether memory cannot explain a failed row.

    The software refuses it; or the same layout ran with as large a micro-batch or a larger one; or its
    prediction is so far below the device's memory that no error of the formulas explains it.
    """
    case = row.case
    assert case is not None
    if row.outcome == "oom":
        return False
    if cannot_run(case, known.habits(case.software)) or ran.get(_layout(case), 0) >= case.micro_batch:
        return True
    return device_memory(case, known).bytes < FAR_BELOW * case.device.memory_bytes


def _shortage(rows: Sequence[PublishedRow], folds: Mapping[str, FittedMemory]) -> Shortage:
    ran: dict[tuple[object, ...], int] = {}
    good = [row for row in rows if is_measured(row)]
    for row in good:
        assert row.case is not None
        layout = _layout(row.case)
        ran[layout] = max(ran.get(layout, 0), row.case.micro_batch)
    failed = [row for row in rows if row.outcome in OUT and row.case is not None]
    fit = {row.line: row.case is not None and fits(row.case, folds[row.set]) for row in [*failed, *good]}
    short = [row for row in failed if not crashed(row, ran, folds[row.set])]
    return Shortage(
        labelled=len(failed),
        labelled_called_fit=sum(fit[row.line] for row in failed),
        crashed=len(failed) - len(short),
        short=len(short),
        short_called_fit=sum(fit[row.line] for row in short),
        ran=len(good),
        ran_called_short=sum(not fit[row.line] for row in good),
    )


def _errors(
    name: str, rows: Sequence[PublishedRow], found: Sequence[PublishedRow], known: FittedMemory
) -> SetErrors:
    logs = errors(found, known)
    low, high = np.log(known.constants.low), np.log(known.constants.high)
    order = np.argsort(-np.abs(logs))[:5]
    ran = [row for row in rows if row.set == name and row.outcome == "ok" and row.memory_bytes]
    return SetErrors(
        rows=len(found),
        skipped=dict(
            Counter(row.why or f"guessed {' and '.join(row.guessed)}" for row in ran if not is_measured(row))
        ),
        mape=float(np.mean(np.abs(np.expm1(-logs)))),
        coverage=float(np.mean((logs >= low) & (logs <= high))),
        worst=tuple(
            (found[i].label, as_measured(found[i], known), found[i].memory_bytes or 0) for i in order
        ),
    )


def _layout(case: TrainingStep) -> tuple[object, ...]:
    return (case.sizes, case.devices, case.tp, case.pp, case.cp, case.dp, case.sharding, case.recompute)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
