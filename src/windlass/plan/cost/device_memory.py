"""How much memory one device needs for a training step, and whether it has as much.

    weights + gradients + optimizer + activations + logits + buffers = what is in use at the peak
    + reserve (fragments that the allocator cannot use, kernels, communicators) = what the device has to have

Input: a TrainingStep. Output: the stage of the pipeline that needs most, part by part, with an interval that
held nine of ten published measurements on sources that the constants had not seen. What software keeps for a
weight is in tables/memory.toml; activations are counted in `activations`. What is divided when is from
Rajbhandari et al. 2020 (arXiv:1910.02054, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from windlass.plan.cost.activations import (
    PipelineStage,
    boundary_bytes,
    cannot_run,
    kept_bytes,
    stages,
    unit_bytes,
    working_bytes,
)
from windlass.plan.cost.fitted_memory import PUBLISHED, FittedMemory, MemoryDefaults
from windlass.plan.cost.step_config import Sizes, TrainingStep

FUSED_LOGIT_BYTES = 4
"""A logit and its gradient in the precision of computing, where the loss is compiled or taken in chunks."""
KERNEL_BYTES = 0.6e9
"""Of the driver's context with the kernels that it has loaded."""
WORKSPACE_BYTES = 0.25e9
"""Of matrix products and collectives, inside the allocator: some tens of MiB for each stream and library."""
GATHERED = 2
"""Layers that fully sharded training has gathered at a time: the one that computes and the next."""


@dataclass(frozen=True)
class DeviceMemory:
    """Of the device that needs most."""

    bytes: float
    low: float
    high: float
    parts: dict[str, float]


class DeviceWeights(NamedTuple):
    """Weights of one device, in numbers of weights."""

    dense: float
    experts: float
    dense_shards: float
    expert_shards: float

    def bytes(self, each: float, *, divided: bool) -> float:
        """Return the bytes at `each` bytes per weight; `divided`: among the devices that share them."""
        if not divided:
            return each * (self.dense + self.experts)
        return each * (self.dense / self.dense_shards + self.experts / self.expert_shards)


class TokenBytes(NamedTuple):
    """Bytes of one token, on any stage of a step."""

    kept: float
    """In one layer, for one pass."""
    boundary: float
    """Between stages, for one pass."""
    at_work: float
    logits: float


def device_memory(case: TrainingStep, known: FittedMemory = PUBLISHED) -> DeviceMemory:
    """Return the memory of the device that needs most."""
    habits, rates = known.habits(case.software), _rates(case, known)
    every = [_parts(case, stage, rates, known) for stage in stages(case, habits)]
    parts = max(every, key=lambda parts: sum(parts.values()))
    total, constants = sum(parts.values()), known.constants
    return DeviceMemory(total, constants.low * total, constants.high * total, parts)


def fits(case: TrainingStep, known: FittedMemory = PUBLISHED) -> bool:
    """Whether the step can run and the upper end of the interval fits the device."""
    if cannot_run(case, known.habits(case.software)):
        return False
    return device_memory(case, known).high <= case.device.memory_bytes


def stage_parts(
    case: TrainingStep, stage: PipelineStage, known: FittedMemory = PUBLISHED
) -> dict[str, float]:
    """Return the bytes that a device of one stage needs, by what they are for."""
    return _parts(case, stage, _rates(case, known), known)


def _parts(
    case: TrainingStep, stage: PipelineStage, rates: TokenBytes, known: FittedMemory
) -> dict[str, float]:
    habits, constants = known.habits(case.software), known.constants
    tokens = case.micro_batch * case.sequence / case.cp
    parts = _state(case, stage, habits)
    passing = stage.passes * (stage.layers * rates.kept + rates.boundary) + rates.at_work
    parts["activations"] = tokens * passing
    parts["logits"] = tokens * rates.logits if stage.head else 0.0
    in_use = sum(parts.values())
    parts["reserve"] = constants.fragments * habits.fragments * in_use + context_bytes(case, known)
    return parts


def context_bytes(case: TrainingStep, known: FittedMemory = PUBLISHED) -> float:
    """Return the bytes outside the allocator: kernels, and a communicator for each axis of the layout."""
    axes = sum(degree > 1 for degree in (case.dp, case.tp, case.pp, case.cp, case.ep))
    return KERNEL_BYTES + axes * known.constants.group_bytes


def _rates(case: TrainingStep, known: FittedMemory) -> TokenBytes:
    habits, constants = known.habits(case.software), known.constants
    layers_at_work = constants.working if case.recompute == "full" else constants.working - 1
    logit = FUSED_LOGIT_BYTES if case.fused_loss else constants.logits
    return TokenBytes(
        kept=kept_bytes(case, habits),
        boundary=boundary_bytes(case) if case.pp > 1 else 0.0,
        at_work=layers_at_work * working_bytes(case, habits),
        logits=logit * unit_bytes(case) / 2 * case.sizes.vocabulary / case.tp,
    )


def _state(case: TrainingStep, stage: PipelineStage, habits: MemoryDefaults) -> dict[str, float]:
    share = _share(case, stage)
    if case.sharding == "full":
        return {
            "weights": share.bytes(4, divided=True),
            "gradients": share.bytes(4, divided=True),
            "optimizer": share.bytes(habits.shard - 8, divided=True),
            "buffers": WORKSPACE_BYTES + _gathered(case, stage, share, habits),
        }
    wide = case.precision == "float32"
    gradient = habits.gradient if case.gradient_bytes is None else case.gradient_bytes
    passing = habits.gradient if gradient > habits.gradient else habits.passing
    gradients = share.bytes(4 if wide else gradient, divided=case.sharding == "gradients")
    return {
        "weights": share.bytes(4 if wide else habits.weight, divided=False),
        "gradients": gradients + share.bytes(0 if wide else passing, divided=False),
        "optimizer": share.bytes(8 if wide else habits.state, divided=case.sharding != "none"),
        "buffers": WORKSPACE_BYTES
        + (habits.bucket_bytes if case.dp > 1 else 0.0)
        + habits.layer_gradient * _shapes(case.sizes) / case.tp,
    }


def _share(case: TrainingStep, stage: PipelineStage) -> DeviceWeights:
    """Return the weights of one device; experts are divided along ep where there is any, else along tp."""
    sizes = case.sizes
    table = sizes.vocabulary * sizes.width
    tables = 1 if stage.embedding and stage.head and sizes.tied else stage.embedding + stage.head
    plain = min(sizes.dense_layers, stage.layers) if stage.embedding else 0
    sparse = stage.layers - plain if sizes.experts else 0
    experts = sparse * sizes.experts * sizes.ffn_weights(sizes.expert_width)
    dense = (stage.layers - sparse) * sizes.dense_layer_weights + sparse * sizes.layer_weights - experts
    dense += tables * table
    if case.ep == 1:
        return DeviceWeights(dense / case.tp, experts / case.tp, case.shards, case.shards)
    same = max(1.0, case.shards * case.tp / case.ep)
    return DeviceWeights(dense / case.tp, experts / case.ep, case.shards, same)


def _gathered(
    case: TrainingStep, stage: PipelineStage, share: DeviceWeights, habits: MemoryDefaults
) -> float:
    """Return what full sharding gathers: layers in the precision of computing, and gradients to be reduced.

    Embedding and head are a group of their own that stays until its gradients are reduced. In a pipeline a
    stage stays gathered, with whole gradients, from its first micro-batch to its last (torchtitan's
    `reshard_after_forward`), because it would be gathered for each of them otherwise.
    """
    reduced = habits.weight + habits.gradient
    if case.pp > 1:
        return reduced * (share.dense + share.experts)
    sizes = case.sizes
    layer = _mean_layer(sizes) / (case.tp if not sizes.experts else max(case.tp, case.ep))
    tables = (stage.embedding + stage.head) * sizes.vocabulary * sizes.width / case.tp
    return layer * (GATHERED * habits.weight + reduced) + tables * (habits.weight + reduced / 2)


def _shapes(sizes: Sizes) -> float:
    """Weights of one matrix of every shape that a layer has; experts are all alike."""
    ffn = sizes.expert_width + sizes.shared_width if sizes.experts else sizes.ffn_width
    return sizes.attention_weights + sizes.ffn_weights(ffn)


def _mean_layer(sizes: Sizes) -> float:
    """Weights of a layer, on average over those with experts and those without."""
    return (sizes.parameters - (1 if sizes.tied else 2) * sizes.vocabulary * sizes.width) / sizes.layers
