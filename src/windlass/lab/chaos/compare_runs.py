"""Compares two finished runs: their weights, bit by bit, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput
from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir


@dataclass(frozen=True)
class RunComparison:
    """The differences between two runs."""

    weights_identical: bool
    largest_weight_difference: float
    largest_loss_difference: float
    """Relative, over the steps that both runs logged."""


def likeness(one: RunFolder, other: RunFolder) -> RunComparison:
    """Compare two finished runs of one job."""
    identical, apart = _weights(one.result, other.result)
    losses = _losses(one), _losses(other)
    common = sorted(losses[0].keys() & losses[1].keys())
    differences = [abs(losses[1][s] - losses[0][s]) / max(abs(losses[0][s]), 1e-12) for s in common]
    return RunComparison(identical, apart, max(differences, default=0.0))


def _losses(run: RunFolder) -> dict[int, float]:
    """Return the training loss by step; a repeated step replaces the earlier one."""
    records: Sequence[dict[str, Any]] = list(Journal(StoreDir(run.path), JOURNAL).read())
    return {int(r["step"]): float(r["loss"]) for r in records if r.get("event") == "step" and "loss" in r}


def _weights(one: Path, other: Path) -> tuple[bool, float]:
    """Return whether all bits are equal, and the largest difference of any weight."""
    names = sorted(path.name for path in one.glob("*.safetensors"))
    if not names or names != sorted(path.name for path in other.glob("*.safetensors")):
        raise BadInput(f"{one} and {other}: models of different kinds")
    identical, apart = True, 0.0
    for name in names:
        with safe_open(one / name, "np") as a, safe_open(other / name, "np") as b:
            if set(a.keys()) != set(b.keys()):
                raise BadInput(f"{one / name} and {other / name}: hold different tensors")
            for key in a.keys():  # noqa: SIM118 - it is no mapping
                x, y = a.get_tensor(key), b.get_tensor(key)
                identical &= x.tobytes() == y.tobytes()
                apart = max(apart, float(np.max(np.abs(x.astype(np.float64) - y), initial=0.0)))
    return identical, apart
