"""Reads published serving measurements.

Input: a CSV of the columns of serving_rows.csv (system, model, engine, precision, tokens in and out, requests
at a time, layout, measured milliseconds). Output: for every row a Measured, or the reason why there is none.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.models import model_named
from windlass.plan.serving.times import ClosedLoop, ModelReplica, WeightFormat, crowd
from windlass.spec.errors import BadInput, NotFound

SYSTEMS = {
    "h100_sxm": "H100-SXM5",
    "h200_sxm": "H200-SXM",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200-NVL72",
    "a100_sxm": "A100-SXM4-80GB",
}
FORMATS: dict[str, WeightFormat] = {
    "": "bfloat16", "bf16": "bfloat16", "fp8": "float8", "fp4": "float4", "int4": "int4",
}  # fmt: skip
NEEDED = ("model", "system", "backend", "precision", "mode", "isl", "osl", "tp", "ttft_ms", "tpot_ms")


@dataclass(frozen=True)
class Measured:
    """One published row."""

    model: str
    system: str
    engine: str
    crowd: ClosedLoop
    first_s: float
    token_s: float
    label: str


@dataclass(frozen=True)
class Rows:
    """Rows that can be predicted, and how many cannot, by reason."""

    used: tuple[Measured, ...]
    skipped: dict[str, int]


def read_serving_rows(path: Path) -> Rows:
    """Read every row; equal measurements of one layout written in two ways count once."""
    try:
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    missing = [name for name in NEEDED if not table or name not in table[0]]
    if missing:
        what = f"has no column '{missing[0]}'" if table else "has no rows"
        raise BadInput(f"{path}: {what}", hint="columns are those of serving_rows.csv: " + ", ".join(NEEDED))
    used, skipped = list[Measured](), Counter[str]()
    for row in table:
        found = _measured(row)
        if isinstance(found, str):
            skipped[found] += 1
        else:
            used.append(found)
    return Rows(tuple(used), dict(skipped.most_common()))


def _measured(row: dict[str, str]) -> Measured | str:
    if row["mode"] != "agg":
        return "disaggregated prefill and decoding, whose numbers of devices are mostly not given"
    if row["precision"] not in FORMATS or row["system"] not in SYSTEMS:
        return f"system {row['system']} or precision {row['precision']} is unknown"
    try:
        model = model_named(row["model"])
    except NotFound:
        return f"sizes of {row['model']} are unknown"
    requests = row.get("concurrency") or row.get("batch_size")
    if not requests or not row["ttft_ms"] or not row["tpot_ms"]:
        return "concurrency or a measured time is missing"
    return _built(row, ModelReplica(model=model, **_layout(row)), int(float(requests)))


def _layout(row: dict[str, str]) -> dict[str, Any]:
    """Return the replica of the row. The KV cache is assumed to be as narrow as the weights, down to 8 bits:
    otherwise some measured rows would not fit."""
    weights = FORMATS[row["precision"]]
    return {
        "device": device_named(SYSTEMS[row["system"]]),
        "weights": weights,
        "cache_bytes": 2.0 if weights == "bfloat16" else 1.0,
        "tp": int(row["tp"]),
        "pp": int(row.get("pp") or 1),
        "dp": int(row.get("attn_dp") or 1),
    }


def _built(row: dict[str, str], replica: ModelReplica, requests: int) -> Measured | str:
    experts = int(row.get("moe_tp") or 1) * int(row.get("moe_ep") or 1)
    if replica.tp > replica.device.domain or replica.dp > replica.device.domain:
        return "a group with more devices than fast links join: the row contradicts itself"
    if replica.room(1) == 0:
        return "weights do not fit by our estimate"
    given, output = int(row["isl"]), int(row["osl"])
    return Measured(
        model=replica.model.name,
        system=row["system"],
        engine=row["backend"],
        crowd=crowd(replica, given, output, requests),
        first_s=float(row["ttft_ms"]) / 1e3,
        token_s=float(row["tpot_ms"]) / 1e3,
        label=f"{row['model']} {row['system']} {row['backend']} {row['precision']} tp={replica.tp}"
        f" dp={replica.dp} {given}/{output} x{requests} experts {experts}",
    )
