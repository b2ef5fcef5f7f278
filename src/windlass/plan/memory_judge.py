"""How well memory is predicted on sources that the constants have not seen, and who runs out of it.

Input: published rows (rows.py). Output: a MemoryVerdict. Each set is predicted with constants that were
fitted to the others, and with an interval from the errors that those had when they were left out themselves.

Sources measure different things: what tensors use at the peak, what the allocator has taken, or what the
driver shows; on the first device, on some, or on the worst of all. Each is compared with the same thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from windlass.plan.activations import cannot_run, stages
from windlass.plan.case import Case
from windlass.plan.device_memory import context_bytes, device_memory, fits, stage_parts
from windlass.plan.memory_known import PUBLISHED, Constants, Known
from windlass.plan.rows import Row

Floats = NDArray[np.float64]

FITTED = ("logits", "working", "fragments", "group_bytes")
EXPECTED = np.array([12.0, 1.5, 1.0, 0.8e9])
DOUBT = np.array([1.0, 0.3, 0.3, 0.3e9])
"""What to expect of the constants before any measurement, and how far off that may be."""
NOISE = 0.08
"""Of the logarithm of one measurement; a set counts as much as ENOUGH rows, however many it has."""
ENOUGH, MOST_FITTED = 20, 120
COVERED = 0.9
NARROWEST = 1.2
"""Factor to either side below which no interval goes: two or three sources are too few to promise more."""
APART = ("bigscience_v100",)
"""Reported but not counted: noisy by 40% in its authors' own words, and some of it with 8-bit optimizers."""
OUT = ("oom", "oom_or_crash")
FAR_BELOW = 0.5
"""A step that is predicted to need less of the device than this did not fail for want of memory."""


@dataclass(frozen=True)
class SetErrors:
    """Of one source, predicted without it."""

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
    """Labelled rows that cannot have failed for want of memory (`crashed`)."""
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
    """All that is said about memory."""

    memory_mape: float
    """Mean over the sets that count."""
    coverage: float
    sets: dict[str, SetErrors]
    shortage: Shortage


def judge_memory(rows: Sequence[Row], known: Known | None = None) -> MemoryVerdict:
    """Judge every set, each by constants fitted without it; by `known` if that is given."""
    measured = _by_set([row for row in rows if _usable(row)])
    folds = {name: known or _without(name, measured) for name in {row.set for row in rows}}
    if known is None:
        folds = _with_intervals(folds, measured)
    sets = {name: _errors(name, rows, found, folds[name]) for name, found in sorted(measured.items())}
    counted = [errors for name, errors in sets.items() if name not in APART]
    return MemoryVerdict(
        memory_mape=_mean([errors.mape for errors in counted]),
        coverage=_mean([errors.coverage for errors in counted]),
        sets=sets,
        shortage=_shortage(rows, folds),
    )


def fit_memory(rows: Sequence[Row]) -> Constants:
    """Fit the constants to all rows, with an interval from the errors on sets that were left out."""
    measured = {
        name: found
        for name, found in _by_set([row for row in rows if _usable(row)]).items()
        if name not in APART
    }
    left_out = {name: _without(name, measured) for name in measured}
    return _interval(_fit(measured), [_logs(found, left_out[name]) for name, found in measured.items()])


def as_measured(row: Row, known: Known = PUBLISHED) -> float:
    """Return the bytes that the source should have seen."""
    assert row.case is not None
    kind, case = row.memory_kind.lower(), row.case
    places = stages(case, known.habits(case.software))
    if "first device" in kind or "as reported" in kind:  # nanotron logs what tensors use on its rank 0
        places = places[:1]
    elif "nvidia-smi" in kind and len(places) > 2:  # first and last nodes
        places = [places[0], places[-1]]
    parts = max((stage_parts(case, place, known) for place in places), key=lambda parts: sum(parts.values()))
    total = sum(parts.values())
    if "alloc" in kind or "as reported" in kind:
        return total - parts["reserve"]
    if any(word in kind for word in ("reserved", "peak", "torch")):
        return total - context_bytes(case, known)
    return total


def crashed(row: Row, ran: Mapping[tuple[object, ...], int], known: Known) -> bool:
    """Whether a failed row can be explained by memory in no way.

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


def _shortage(rows: Sequence[Row], folds: Mapping[str, Known]) -> Shortage:
    ran: dict[tuple[object, ...], int] = {}
    good = [row for row in rows if _usable(row)]
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


def _errors(name: str, rows: Sequence[Row], found: Sequence[Row], known: Known) -> SetErrors:
    logs = _logs(found, known)
    low, high = np.log(known.constants.low), np.log(known.constants.high)
    order = np.argsort(-np.abs(logs))[:5]
    ran = [row for row in rows if row.set == name and row.outcome == "ok" and row.memory_bytes]
    return SetErrors(
        rows=len(found),
        skipped=dict(
            Counter(row.why or f"guessed {' and '.join(row.guessed)}" for row in ran if not _usable(row))
        ),
        mape=float(np.mean(np.abs(np.expm1(-logs)))),
        coverage=float(np.mean((logs >= low) & (logs <= high))),
        worst=tuple(
            (found[i].label, as_measured(found[i], known), found[i].memory_bytes or 0) for i in order
        ),
    )


def _with_intervals(folds: dict[str, Known], measured: Mapping[str, Sequence[Row]]) -> dict[str, Known]:
    """Give each fold an interval from the left-out errors of the other sets."""
    logs = {name: _logs(found, folds[name]) for name, found in measured.items() if name not in APART}
    return {
        name: replace(
            known,
            constants=_interval(known.constants, [found for other, found in logs.items() if other != name]),
        )
        for name, known in folds.items()
    }


def _interval(constants: Constants, logs: Sequence[Floats]) -> Constants:
    """Set the factors between which nine of ten errors lie, each set counting the same (conformal)."""
    if not logs:
        return constants
    values = np.concatenate(logs)
    weights = np.concatenate([np.full(len(found), 1 / len(found)) for found in logs])
    order = np.argsort(values)
    places = np.cumsum(weights[order]) / weights.sum()
    first = values[order][np.searchsorted(places, (1 - COVERED) / 2)]
    last = values[order][np.searchsorted(places, (1 + COVERED) / 2)]
    low, high = min(float(np.exp(first)), 1 / NARROWEST), max(float(np.exp(last)), NARROWEST)
    return replace(constants, low=low, high=high)


def _without(name: str, measured: Mapping[str, Sequence[Row]]) -> Known:
    others = {other: found for other, found in measured.items() if other != name and other not in APART}
    return replace(PUBLISHED, constants=_fit(others))


def _fit(measured: Mapping[str, Sequence[Row]]) -> Constants:
    """Return constants near what is expected that make errors small, sets counting the same."""
    chosen = [found[:: max(1, len(found) // MOST_FITTED)] for found in measured.values()]

    def errors(shift: Floats) -> Floats:
        known = replace(PUBLISHED, constants=_constants(shift))
        scale = [np.sqrt(ENOUGH / len(found)) / NOISE for found in chosen]
        logs = [_logs(found, known) * each for found, each in zip(chosen, scale, strict=True)]
        return np.concatenate([*logs, shift])

    found = least_squares(errors, np.zeros(len(FITTED)), loss="soft_l1", bounds=(-2.5, 2.5))
    return _constants(found.x)


def _constants(shift: Floats) -> Constants:
    values = dict(zip(FITTED, (EXPECTED + shift * DOUBT).tolist(), strict=True))
    return replace(PUBLISHED.constants, **values)


def _logs(rows: Sequence[Row], known: Known) -> Floats:
    """Return the logarithms of measured over predicted."""
    return np.log([(row.memory_bytes or 0) / as_measured(row, known) for row in rows])


def _usable(row: Row) -> bool:
    return row.case is not None and row.whole and row.outcome == "ok" and bool(row.memory_bytes)


def _layout(case: Case) -> tuple[object, ...]:
    return (case.sizes, case.devices, case.tp, case.pp, case.cp, case.dp, case.sharding, case.recompute)


def _by_set(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.set, []).append(row)
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
