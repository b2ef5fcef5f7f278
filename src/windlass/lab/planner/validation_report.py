"""The report of `windlass plan published`: errors of predictions on measured rows.

Input: sources with their predictions (published.py), memory's verdict (memory_validation.py), cells of the
sweep (regret.py). Output: the record that `windlass plan published --json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from windlass.lab.planner.memory_validation import MemoryVerdict, judge_memory
from windlass.lab.planner.published import LARGE, PublishedSource, RowPrediction, mape
from windlass.lab.planner.regret import RegretCell, cells
from windlass.lab.planner.rows import PublishedRow
from windlass.plan.cost.device_memory import fits
from windlass.plan.cost.fitted_memory import PUBLISHED

STALLED = 0.05
SWEEP = "nanotron_ultrascale"
"""The large sweep over whose cells the regret is computed; in a file without it, over all cells."""


def verdict(
    sources: Mapping[str, PublishedSource],
    rows: Sequence[PublishedRow],
    *,
    left_out: bool,
    worst: int = 8,
    training: Sequence[PublishedRow] = (),
) -> dict[str, Any]:
    """Summarise; `left_out`: each set was predicted with constants fitted to the others of `training`."""
    memory = judge_memory(rows, None if left_out else PUBLISHED, training)
    counted = {name: source for name, source in sources.items() if source.counted}
    every = [one for source in counted.values() for one in source.whole]
    large = [one for one in every if one.row.case is not None and one.row.case.devices >= LARGE]
    swept = [SWEEP] if SWEEP in sources else list(sources)
    found = [cell for name in swept for cell in cells(sources[name].predictions, fits)]
    return {
        "figures": {
            "time_mape": _mean([mape(source.whole) for source in counted.values()]),
            "steady_time_mape": _mean([mape(_steady(source.whole)) for source in counted.values()]),
            "large_time_mape": mape(large),
            "steady_large_time_mape": mape(_steady(large)),
            "memory_mape": _finite(memory.memory_mape),
            "oom_called_fit": memory.shortage.oom_called_fit,
            "labelled_oom_called_fit": memory.shortage.labelled_oom_called_fit,
            "ok_called_oom": memory.shortage.ok_called_oom,
            "memory_interval_coverage": _finite(memory.coverage),
            "regret_mean": _mean([cell.regret for cell in found]),
            "regret_median": _median([cell.regret for cell in found]),
            "interval_coverage": _mean([_coverage(source.whole) for source in counted.values()]),
        },
        "sources": {name: _source(source, memory, name) for name, source in sources.items()},
        "shortage": asdict(memory.shortage),
        "cells": [_cell(cell) for cell in sorted(found, key=lambda cell: -cell.regret)],
        "worst": [_row(one) for one in sorted(every, key=lambda one: -abs(one.error))[:worst]],
    }


def _source(source: PublishedSource, memory: MemoryVerdict, name: str) -> dict[str, Any]:
    whole, remembered = source.whole, memory.sets.get(name)
    return {
        "rows": source.rows,
        "used": len(whole),
        "guessed": len(source.predictions) - len(whole),
        "skipped": source.skipped,
        "counted": source.counted,
        "why_not": source.why,
        "time_mape": mape(whole),
        "time_mape_guessed": mape([one for one in source.predictions if not one.row.whole]),
        "median_error": _median([one.error for one in whole]),
        "coverage": _coverage(whole),
        "memory_rows": remembered.rows if remembered else 0,
        "memory_mape": remembered.mape if remembered else None,
        "memory_coverage": remembered.coverage if remembered else None,
        "memory_skipped": remembered.skipped if remembered else {},
    }


def _row(one: RowPrediction) -> dict[str, Any]:
    return {
        "set": one.row.set,
        "line": one.row.line,
        "label": one.row.label,
        "measured_s": one.measured,
        "predicted_s": one.seconds,
        "error": one.error,
    }


def _cell(cell: RegretCell) -> dict[str, Any]:
    return {
        "model": cell.model,
        "devices": cell.devices,
        "layouts": cell.layouts,
        "chosen": cell.chosen.row.label,
        "chosen_s": cell.chosen.measured,
        "best": cell.best.row.label,
        "best_s": cell.best.measured,
        "regret": cell.regret,
    }


def _steady(predictions: Sequence[RowPrediction]) -> list[RowPrediction]:
    """Leave out runs with less than STALLED of the peak: no column says why they were slow."""
    return [one for one in predictions if _utilisation(one) >= STALLED]


def _utilisation(one: RowPrediction) -> float:
    case = one.row.case
    assert case is not None
    sizes = case.sizes
    active = sizes.layers * sizes.active_layer_weights + sizes.vocabulary * sizes.width
    flops = 6 * active * case.global_batch * case.sequence
    return flops / (one.measured * case.devices * case.device.peak_flops[case.precision])


def _coverage(predictions: Sequence[RowPrediction]) -> float | None:
    return sum(one.covered for one in predictions) / len(predictions) if predictions else None


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _finite(value: float) -> float | None:
    return value if value == value else None
