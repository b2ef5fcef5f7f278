"""Costs of a few lines for tests of the search: quick, smooth in every choice, and never refitted."""

import math

import pytest

from windlass.plan.cost.device_memory import DeviceMemory
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.cost.step_time import StepTime
from windlass.plan.fleet.explore import Predictor

AGAIN = {"none": 1.0, "selective": 1.04, "full": 4 / 3}
KEPT = {"none": 34.0, "selective": 20.0, "full": 2.0}


def _mixed(table: dict[str, float], case: TrainingStep) -> float:
    """Of layers to which the policy applies, and of the others."""
    return case.recompute_share * table[case.recompute] + (1 - case.recompute_share) * table["none"]


def fake_time(case: TrainingStep) -> StepTime:
    work = 6 * case.sizes.parameters * case.global_batch * case.sequence * _mixed(AGAIN, case)
    tokens = case.micro_batch * case.sequence / case.cp
    share = 0.5 * tokens / (tokens + 256 * case.tp)
    products = work / (case.devices * case.device.peak_flops[case.precision] * share)
    weights = case.sizes.parameters / (case.tp * case.pp)
    gathered = 0.3 * case.micro_batches if case.sharding == "full" else 1.0
    parts = {
        "products": products,
        "pipeline idle": products * (case.pp - 1) / (case.virtual * case.micro_batches),
        "tensor exchange": 0.05 * products * math.log2(case.tp),
        "context exchange": 0.02 * products * math.log2(case.cp),
        "gradient exchange": 4 * weights * gathered / case.device.network_bytes_s if case.dp > 1 else 0.0,
    }
    seconds = sum(parts.values())
    return StepTime(seconds, 0.9 * seconds, 1.1 * seconds, parts)


def fake_memory(case: TrainingStep) -> DeviceMemory:
    weights = case.sizes.parameters / (case.tp * case.pp)
    divided = {"none": 0, "optimizer": 12, "gradients": 14, "full": 16}[case.sharding]
    tokens = case.micro_batch * case.sequence / case.cp
    layers = case.sizes.layers / case.pp * min(case.pp, case.micro_batches) * (1 + 1 / (4 * case.virtual))
    parts = {
        "state": weights * (16 - divided + divided / case.shards),
        "activations": _mixed(KEPT, case) * tokens * case.sizes.width * layers / case.tp,
    }
    total = sum(parts.values())
    return DeviceMemory(total, 0.9 * total, 1.1 * total, parts)


@pytest.fixture(scope="session")
def fake() -> Predictor:
    return Predictor(fake_time, fake_memory)
