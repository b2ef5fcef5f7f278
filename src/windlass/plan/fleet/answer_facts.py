"""The parts of an answer as plain data: layouts, points, the model, the fleet (docs/formats/plan.md)."""

from __future__ import annotations

import math
from typing import Any

from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.fleet.alternatives import counted_weights
from windlass.plan.fleet.explain import layout_name
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.run_estimate import RunEstimate
from windlass.plan.fleet.work import TrainingWork
from windlass.plan.loss import expected_loss

LOSS_SPREAD = (0.88, 1.48)
"""Factors on the law between which nine in ten published losses lie, every text weighing the same
(MassiveText, C4, RedPajama, RefinedWeb, FineWeb, OpenWebText, ROOTS). Small models that have seen far too
much are above it."""


def layout_facts(work: TrainingWork, run: RunEstimate) -> dict[str, Any]:
    """Return one layout; for a team, the choices of its slowest member, and all members."""
    fullest = max(run.members, key=lambda member: member.estimate.memory.bytes)
    memory = fullest.estimate.memory
    facts = {
        "name": layout_name(run),
        "choices": choices(work, run.case),
        "device": run.case.device.name,
        "devices": run.devices,
        "step_s": run.step.seconds,
        "step_range_s": [run.step.low, run.step.high],
        "step_parts_s": {part: float(seconds) for part, seconds in run.step.parts.items() if seconds},
        "seconds": run.seconds,
        "seconds_range": list(run.seconds_range),
        "tokens_s": work.global_batch * work.sequence / run.step.seconds,
        "memory_bytes": memory.bytes,
        "memory_range_bytes": [memory.low, memory.high],
        "limit_bytes": fullest.case.device.memory_bytes,
        "memory_parts_bytes": {part: size for part, size in memory.parts.items() if size},
        "dollars": list(run.cost.dollars) if run.cost.dollars is not None else None,
        "kwh": run.cost.kwh,
        "loss": loss_of(work),
        "loss_range": loss_range(work),
    }
    if len(run.members) > 1:
        facts["team"] = [
            {
                "device": member.case.device.name,
                "devices": member.case.devices,
                "share": member.case.global_batch / work.global_batch,
                "choices": choices(work, member.case),
            }
            for member in run.members
        ]
    return facts


def choices(work: TrainingWork, case: TrainingStep) -> dict[str, Any]:
    """Return the choices of the search."""
    names = ("dp", "tp", "pp", "virtual", "cp", "ep", "sharding", "shards", "micro_batch", "micro_batches")
    chosen = {name: getattr(case, name) for name in (*names, "recompute", "recompute_share", "precision")}
    return {**chosen, "sync": work.sync.policy}


def point_facts(run: RunEstimate) -> dict[str, Any]:
    return {
        "name": layout_name(run),
        "devices": run.devices,
        "seconds": run.seconds,
        "dollars": run.dollars,
        "memory_bytes": run.memory_bytes,
    }


def model_facts(work: TrainingWork) -> dict[str, Any]:
    return {
        "parameters": work.sizes.parameters,
        "layers": work.sizes.layers,
        "width": work.sizes.width,
        "sequence": work.sequence,
        "vocabulary": work.sizes.vocabulary,
        "tokens": work.tokens,
        "global_batch": work.global_batch,
        "steps": work.steps,
        "experts": work.sizes.experts,
    }


def fleet_facts(pools: tuple[DevicePool, ...]) -> dict[str, Any]:
    groups = [
        {
            "device": pool.device.name,
            "devices": pool.devices,
            "per_machine": pool.per_machine,
            "memory_bytes": pool.device.memory_bytes,
            "dollars_h": list(pool.device.dollars_h) if pool.device.dollars_h is not None else None,
        }
        for pool in pools
    ]
    return {"devices": sum(pool.devices for pool in pools), "groups": groups}


def loss_of(work: TrainingWork) -> float:
    """The published law, on text that is not repeated."""
    return expected_loss(counted_weights(work.sizes), work.tokens, work.tokens, work.sizes.vocabulary)


def loss_range(work: TrainingWork) -> list[float]:
    """Return the interval, which ends at the loss of a model that knows nothing."""
    low, high = (factor * loss_of(work) for factor in LOSS_SPREAD)
    return [low, min(high, math.log(work.sizes.vocabulary))]
