"""Peaks of memory that Megatron-LM reached on eight B200, none of which any constant was fitted to.

Measured by the authors of SimuMax (MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.md, commit
1b8ca90bec): the most that tensors used on any device, bfloat16, distributed optimizer, micro-batch 1, a fused
loss, models of 12 (70 billion weights) or 4 layers.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

import pytest

from windlass.lab.planner.fit_memory import as_measured
from windlass.lab.planner.rows import PublishedRow
from windlass.plan.cost.step_config import Device, Sizes, TrainingStep

MEASURED = list(csv.DictReader((Path(__file__).parent / "megatron_memory.csv").open()))
DEVICE = Device("B200", {"bfloat16": 2.25e15}, 180 * 2**30, 8e12, 900e9, 50e9)
LATENT = (1536, 512)
SIZES = {
    "llama3-70b": Sizes(12, 8192, 64, 8, 128, 28672, True, 128256, False),
    "llama3-405b": Sizes(4, 16384, 128, 8, 128, 53248, True, 128256, False),
    "deepseek-v2": Sizes(
        4, 5120, 128, 128, 128, 12288, True, 102400, False, True, 160, 6, 1536, 3072, 1, LATENT
    ),
    "deepseek-v3": Sizes(
        4, 7168, 128, 128, 128, 18432, True, 129280, False, True, 256, 8, 2048, 2048, 1, LATENT
    ),
}


def error(line: dict[str, str]) -> float:
    tp, pp, dp, ep, cp, sequence = (int(line[name]) for name in ("tp", "pp", "dp", "ep", "cp", "seq"))
    case = TrainingStep(
        sizes=SIZES[line["model"]],
        sequence=sequence,
        global_batch=32,
        micro_batch=1,
        device=DEVICE,
        devices=8,
        per_machine=8,
        tp=tp,
        sequence_parallel=tp > 1,
        pp=pp,
        dp=dp,
        ep=ep,
        cp=cp,
        sharding="optimizer" if dp * cp > 1 else "none",
        shards=dp * cp,
        software="megatron-core-2025",
        fused_loss=True,
    )
    row = PublishedRow(0, "", line["model"], case, "", (), None, None, "peak allocated", "ok")
    return as_measured(row) / (float(line["alloc_gib"]) * 2**30) - 1


@pytest.mark.parametrize("line", MEASURED, ids=lambda line: "-".join(line.values()))
def test_every_layout_is_predicted_within_five_percent(line: dict[str, str]) -> None:
    assert abs(error(line)) < 0.05


def test_all_layouts_together_are_predicted_within_two_percent() -> None:
    assert mean(abs(error(line)) for line in MEASURED) < 0.02
