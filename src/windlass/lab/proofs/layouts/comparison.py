"""The runs that `windlass prove layouts` compares, and when two runs count as equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from windlass.spec.config_model import ConfigModel
from windlass.spec.job import MachineSpec, ModelSpec, Train
from windlass.spec.layout import parse_layout
from windlass.spec.shape import FAMILIES

PROOF, RESULT = "proof.json", "result.json"
LOSS_TOLERANCE = 1e-4
"""Tolerance of the loss at every step, relative."""
WEIGHT_TOLERANCE = 1e-3
"""Tolerance of every final weight, absolute."""

SCHEDULES = (
    "schedule=gpipe",
    "schedule=1f1b",
    "schedule=interleaved,virtual=2",
    "schedule=looped,virtual=2",
    "schedule=zero-bubble,virtual=2",
    "schedule=zbv,virtual=2",
    "schedule=dualpipe-v,virtual=2",
)
LAYOUTS = (
    "dp=2",
    "dp=2,shares=2:1",
    "sharded=2",
    "sharded=3",
    "tp=2",
    "tp=2,sequence=false",
    "cp=2",
    *(f"pp=2,micro_batches=4,{schedule}" for schedule in SCHEDULES),
    "pp=2,micro_batches=4,placement=random",
    "dp=2,tp=2",
    "dp=2,pp=2,micro_batches=3",
    "pp=2,tp=2,micro_batches=3",
    "sharded=2,tp=2",
    "sharded=2,pp=2,micro_batches=3",
    "sharded=2,recompute=full",
    "dp=2,recompute=selective",
)
RESHARD = ("pp=2,tp=2,micro_batches=3", "sharded=3", "")


def fits(family: str, layout: str) -> bool:
    """Whether a family supports a layout: an mlp has data parallelism and weight sharding only."""
    parsed = parse_layout(layout)
    return family in FAMILIES or parsed.tp * parsed.pp * parsed.cp == 1


class LayoutsProof(ConfigModel):
    """A list of runs to compare."""

    kind: Literal["layouts", "reshard"]
    families: tuple[str, ...]
    layouts: tuple[str, ...]
    """As `--layout` takes them; "" is one process."""
    steps: int
    model: ModelSpec
    train: Train
    machine: MachineSpec
    corpus: dict[str, Any]


class CaseDifference(ConfigModel):
    """The differences of one case from a single process."""

    family: str
    layout: str
    loss_difference: float = 0.0
    weight_difference: float = 0.0
    failure: str | None = None

    @property
    def equal(self) -> bool:
        return (
            self.failure is None
            and self.loss_difference <= LOSS_TOLERANCE
            and self.weight_difference <= WEIGHT_TOLERANCE
        )


def figures_of(outcomes: Sequence[CaseDifference]) -> dict[str, float]:
    """Summarise: the largest differences, and how many cases are equal. A failed case has no differences."""
    done = [outcome for outcome in outcomes if outcome.failure is None]
    return {
        "worst_loss_difference": max((o.loss_difference for o in done), default=float("inf")),
        "worst_weight_difference": max((o.weight_difference for o in done), default=float("inf")),
        "layouts_equal": sum(outcome.equal for outcome in outcomes),
        "layouts_tried": len(outcomes),
        "layouts_failed": len(outcomes) - len(done),
    }
