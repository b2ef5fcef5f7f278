"""The cost of choosing a layout by prediction, compared with knowing all measurements.

In a sweep many layouts of one model were measured on the same devices. In each such cell the layout is chosen
as the planner does: the fastest of those predicted to fit, pipelines with a margin (`ranked_s`). Its regret
is how much slower it was measured than the best one, whether that was predicted to fit or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windlass.lab.planner.published import RowPrediction
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.cost.step_time import ranked_s

MIN_LAYOUTS = 5
"""Minimum number of layouts of a cell for a meaningful choice."""


@dataclass(frozen=True)
class RegretCell:
    """One model on a number of devices."""

    model: str
    devices: int
    layouts: int
    chosen: RowPrediction
    best: RowPrediction

    @property
    def regret(self) -> float:
        return self.chosen.measured / self.best.measured - 1


def cells(predictions: Sequence[RowPrediction], fits: Callable[[TrainingStep], bool]) -> list[RegretCell]:
    """Choose in every cell; rows of a cell share model, devices, batch and sequence."""
    groups: dict[tuple[object, ...], list[RowPrediction]] = {}
    for one in predictions:
        case = one.row.case
        assert case is not None
        key = (case.sizes, case.device.name, case.devices, case.global_batch, case.sequence)
        groups.setdefault(key, []).append(one)
    return [_cell(group, fits) for group in groups.values() if len(group) >= MIN_LAYOUTS]


def _rank(one: RowPrediction) -> float:
    assert one.row.case is not None
    return ranked_s(one.row.case, one.seconds)


def _cell(group: Sequence[RowPrediction], fits: Callable[[TrainingStep], bool]) -> RegretCell:
    fitting = [one for one in group if one.row.case is not None and fits(one.row.case)]
    chosen = min(fitting or group, key=_rank)
    best = min(group, key=lambda one: one.measured)
    case = chosen.row.case
    assert case is not None
    return RegretCell(chosen.row.label.split()[0], case.devices, len(group), chosen, best)
