"""How much memory one device needs for a training step, and whether it has as much.

    weights + gradients + optimizer + activations + logits + buffers = what is in use at the peak
    + reserve (fragments that the allocator cannot use, kernels, communicators) = what the device has to have

Input: a Case. Output: the stage of the pipeline that needs most, part by part, with an interval that held
nine of ten published measurements on sources that the constants had not seen. What software keeps for a
weight is in tables/memory.toml; activations are counted in activations.py. What is divided when is from
Rajbhandari et al. 2020 (arXiv:1910.02054, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.plan.activations import Stage, kept_bytes, stages, working_bytes
from windlass.plan.case import Case
from windlass.plan.memory_known import PUBLISHED, Habits, Known

FUSED_LOGIT_BYTES = 4
"""A logit and its gradient in the precision of computing, where the loss is compiled or taken in chunks."""
GATHERED = 2
"""Layers that fully sharded training has gathered at a time: the one that computes and the next."""


@dataclass(frozen=True)
class DeviceMemory:
    """Of the device that needs most."""

    bytes: float
    low: float
    high: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Share:
    """Weights of one device, in numbers of weights."""

    dense: float
    experts: float
    dense_shards: float
    expert_shards: float

    def bytes(self, each: float, *, divided: bool) -> float:
        """Return what `each` byte of a weight comes to, divided among those that hold the same or not."""
        if not divided:
            return each * (self.dense + self.experts)
        return each * (self.dense / self.dense_shards + self.experts / self.expert_shards)


def device_memory(case: Case, known: Known = PUBLISHED) -> DeviceMemory:
    """Return what the device needs that needs most."""
    habits = known.habits(case.software)
    every = [stage_parts(case, stage, known) for stage in stages(case, habits)]
    parts = max(every, key=lambda parts: sum(parts.values()))
    total, constants = sum(parts.values()), known.constants
    return DeviceMemory(total, constants.low * total, constants.high * total, parts)


def fits(case: Case, known: Known = PUBLISHED) -> bool:
    """Whether the device has enough even if the step needs as much as it rarely does."""
    return device_memory(case, known).high <= case.device.memory_bytes


def stage_parts(case: Case, stage: Stage, known: Known = PUBLISHED) -> dict[str, float]:
    """Return the bytes that a device of one stage needs, by what they are for."""
    habits, constants = known.habits(case.software), known.constants
    parts = _state(case, stage, habits)
    tokens = case.micro_batch * case.sequence / case.cp
    unit = 4 if case.precision == "float32" else 2
    spread = case.tp if case.sequence_parallel else 1
    kept = stage.passes * stage.layers * kept_bytes(case, habits) * constants.activations
    borders = stage.passes * unit * case.sizes.width / spread if case.pp > 1 else 0.0
    at_work = constants.working if case.recompute == "full" else constants.working - 1
    at_work *= working_bytes(case, habits)
    parts["activations"] = tokens * (kept + borders + at_work)
    logit = FUSED_LOGIT_BYTES if case.fused_loss else constants.logits
    logits = logit * unit / 2 * case.sizes.vocabulary / case.tp
    parts["logits"] = tokens * logits if stage.head else 0.0
    in_use = sum(parts.values())
    parts["reserve"] = constants.fragments * in_use + constants.context_bytes
    return parts


def _state(case: Case, stage: Stage, habits: Habits) -> dict[str, float]:
    share = _share(case, stage)
    wide = 2 if case.precision == "float32" else 1
    gradient, passing = habits.gradient, habits.passing
    if case.gradient_bytes is not None and case.gradient_bytes > gradient:
        gradient, passing = case.gradient_bytes, habits.gradient
    if case.sharding == "full":
        return {
            "weights": share.bytes(4, divided=True),
            "gradients": share.bytes(4, divided=True),
            "optimizer": share.bytes(habits.shard - 8, divided=True),
            "buffers": _gathered(case, stage, habits),
        }
    return {
        "weights": share.bytes(habits.weight * wide, divided=False),
        "gradients": share.bytes(gradient, divided=case.sharding == "gradients")
        + share.bytes(passing, divided=False),
        "optimizer": share.bytes(habits.state if wide == 1 else 8, divided=case.sharding != "none"),
        "buffers": habits.bucket_bytes if case.dp > 1 else 0.0,
    }


def _share(case: Case, stage: Stage) -> Share:
    """Return the weights of one device; experts are divided along ep where there is any, else along tp."""
    sizes = case.sizes
    embedding = sizes.vocabulary * sizes.width
    tables = stage.embedding + stage.head
    if stage.embedding and stage.head and sizes.tied:
        tables = 1
    sparse = (sizes.layers - sizes.dense_layers) / sizes.layers if sizes.experts else 0.0
    experts = sparse * sizes.experts * sizes.ffn_weights(sizes.expert_width)
    mean = (sizes.parameters - (1 if sizes.tied else 2) * embedding) / sizes.layers
    dense = stage.layers * (mean - experts) + tables * embedding
    along = case.ep if case.ep > 1 else case.tp
    same = case.shards * (case.tp / case.ep if case.ep > 1 else 1)
    return Share(dense / case.tp, stage.layers * experts / along, case.shards, max(1.0, same))


def _gathered(case: Case, stage: Stage, habits: Habits) -> float:
    """Return what full sharding gathers: layers in the precision of computing, and gradients to be reduced.

    Embedding and head are a group of their own that stays until its gradients are reduced.
    """
    sizes = case.sizes
    layer = (sizes.parameters - (1 if sizes.tied else 2) * sizes.vocabulary * sizes.width) / sizes.layers
    layer /= case.tp if not sizes.experts else max(case.tp, case.ep)
    tables = (stage.embedding + stage.head) * sizes.vocabulary * sizes.width / case.tp
    reduced = habits.weight + habits.gradient
    return layer * (GATHERED * habits.weight + reduced) + tables * (habits.weight + reduced / 2)
