"""Proves that every decoder family computes what transformers computes; the work is in lab/torch.

a tiny random model of transformers -> its directory -> ours: logits, gradients, and back again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.processes import FAMILIES_PROOF


def prove_families(
    home: Path, families: Sequence[str], tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Compare the families, all by default. Return the figures, and the row of each case."""
    rows: list[dict[str, Any]] = []
    arguments = ["--families", ",".join(families)]
    with LocalProcess("families", FAMILIES_PROOF, arguments, home / "logs" / "families.log") as process:
        for event in process.events():
            if "result" in event:
                rows.append(event["result"])
                tell(event["result"])
        process.check()
    return {"figures": figures_of(rows), "results": rows}


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "families": len({row["family"] for row in rows}),
        "cases": len(rows),
        "worst_logit_difference": max((row["logit_difference"] for row in rows), default=0.0),
        "worst_gradient_difference": max((row["gradient_difference"] for row in rows), default=0.0),
        "round_trips_failed": sum(not row["round_trip"] for row in rows),
    }


def is_equal(result: dict[str, Any]) -> bool:
    """Whether every case was within the tolerance, and there was one."""
    return bool(result["results"]) and all(row["is_equal"] for row in result["results"])
