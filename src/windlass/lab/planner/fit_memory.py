"""Fits the constants of the memory model to published rows, and predicts what each source measures.

Input: rows with measured memory, by set. Output: constants, with factors that contain nine of ten errors on
sets left out of the fit. Prior values keep the constants where there are few measurements.

Sources measure different things: peak memory of tensors, of the allocator, or of the driver; on the first
device, on some, or on the worst. Each is compared with the corresponding prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from windlass.lab.planner.rows import PublishedRow
from windlass.plan.cost.activations import stages
from windlass.plan.cost.device_memory import context_bytes, stage_parts
from windlass.plan.cost.fitted_memory import PUBLISHED, FittedMemory, MemoryConstants

Floats = NDArray[np.float64]
Measured = Mapping[str, Sequence[PublishedRow]]
"""Rows with measured memory, by set."""

FITTED = ("logits", "working", "fragments", "group_bytes")
EXPECTED = np.array([12.0, 1.5, 1.0, 0.8e9])
DOUBT = np.array([1.0, 0.3, 0.3, 0.3e9])
"""Prior of the constants, and its standard deviation."""
FARTHEST = 2.5
NOISE = 0.08
"""Noise of the logarithm of one measurement; a set counts as at most ENOUGH rows."""
ENOUGH, MAX_FITTED = 20, 120
COVERED = 0.9
NARROWEST = 1.2
"""Minimum factor of an interval to either side: two or three sources are too few for a narrower one."""
APART = ("bigscience_v100",)
"""Reported but not counted: noisy by 40% in its authors' own words, and some of it with 8-bit optimizers."""


def fit_memory(rows: Sequence[PublishedRow]) -> MemoryConstants:
    """Fit the constants to all rows, with an interval from the errors on sets that were left out."""
    measured = {name: found for name, found in measured_rows(rows).items() if name not in APART}
    logs = [errors(found, without(name, measured)) for name, found in measured.items()]
    return interval(fit_constants(measured), logs)


def measured_rows(rows: Sequence[PublishedRow]) -> dict[str, list[PublishedRow]]:
    """Return the rows that validate memory, by set."""
    found: dict[str, list[PublishedRow]] = {}
    for row in rows:
        if is_measured(row):
            found.setdefault(row.set, []).append(row)
    return found


def is_measured(row: PublishedRow) -> bool:
    """Whether a row ran, has measured memory, and needed no guesses."""
    return row.case is not None and row.whole and row.outcome == "ok" and bool(row.memory_bytes)


def as_measured(row: PublishedRow, known: FittedMemory = PUBLISHED) -> float:
    """Return the bytes that the source should have measured."""
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


def errors(rows: Sequence[PublishedRow], known: FittedMemory) -> Floats:
    """Return the logarithms of measured over predicted."""
    return np.log([(row.memory_bytes or 0) / as_measured(row, known) for row in rows])


def without(name: str, measured: Measured) -> FittedMemory:
    """Return the fit without a set."""
    others = {other: found for other, found in measured.items() if other != name and other not in APART}
    return replace(PUBLISHED, constants=fit_constants(others))


def fit_constants(measured: Measured) -> MemoryConstants:
    """Return the constants that minimise errors and distance from the prior; all sets count the same."""
    chosen = [found[:: max(1, len(found) // MAX_FITTED)] for found in measured.values()]
    scale = [np.sqrt(ENOUGH / len(found)) / NOISE for found in chosen]

    def wrong(shift: Floats) -> Floats:
        known = replace(PUBLISHED, constants=_constants(shift))
        logs = [errors(found, known) * each for found, each in zip(chosen, scale, strict=True)]
        return np.concatenate([*logs, shift])

    found = least_squares(wrong, np.zeros(len(FITTED)), loss="soft_l1", bounds=(-FARTHEST, FARTHEST))
    return _constants(found.x)


def _constants(shift: Floats) -> MemoryConstants:
    values = dict(zip(FITTED, (EXPECTED + shift * DOUBT).tolist(), strict=True))
    return replace(PUBLISHED.constants, **values)


def interval(constants: MemoryConstants, logs: Sequence[Floats]) -> MemoryConstants:
    """Set the factors that contain nine of ten errors; each set counts the same (conformal)."""
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
