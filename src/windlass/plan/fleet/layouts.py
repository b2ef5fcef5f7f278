"""Every layout that some work can have on some devices, one after the other.

A division says how many devices share layers, features, sequence and batch; a variant of it adds what a
device does with its share: sharding, recomputation, micro-batch. Layouts that cannot win are never
generated: tensor parallelism beyond the fast links, sequences cut to less than a thousand tokens, fewer
replicas than the devices and the batch allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from windlass.plan.cost.software_defaults import habits_of
from windlass.plan.cost.step_config import Precision, Recompute, Sharding, TrainingStep
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.work import TrainingWork

MIN_CUT_TOKENS = 1024
MAX_VIRTUAL = 8
MAX_MICRO_BATCH = 64
Shards = tuple[Sharding, int]
"""What is divided, among how many."""
HALVES: tuple[Precision, ...] = ("bfloat16", "float16", "float32")
"""16-bit precisions; the first that a device has is used."""
RECOMPUTES: tuple[tuple[Recompute, float], ...] = (
    ("none", 1.0), ("selective", 1.0), ("full", 0.25), ("full", 0.5), ("full", 0.75), ("full", 1.0),
)  # fmt: skip
"""Policies with their share of the layers, from the fastest to the smallest: where one fits, those behind it
are only slower."""


@dataclass(frozen=True)
class Division:
    """Degrees of every axis."""

    tp: int
    pp: int
    virtual: int
    cp: int
    ep: int
    dp: int

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


def divisions(work: TrainingWork, pool: DevicePool) -> Iterator[Division]:
    """Yield the divisions that model, batch and devices allow.

    The batch takes all devices that the other axes leave, as far as it can be divided among them.
    """
    for tp in tensor_degrees(work, pool):
        for pp in pipeline_degrees(work, pool.devices // tp):
            for cp in context_degrees(work, pool.devices // (tp * pp)):
                dp = _replicas(work, pool.devices // (tp * pp * cp))
                for ep in expert_degrees(work, dp * cp):
                    for virtual in virtual_degrees(work, pp, dp):
                        yield Division(tp, pp, virtual, cp, ep, dp)


def variants(
    work: TrainingWork, pool: DevicePool, division: Division
) -> Iterator[Iterator[Iterator[TrainingStep]]]:
    """Yield, for each sharding and precision, micro-batches in rising order, and for each the recomputations.

    The nesting is what pruning needs: the first recomputation that fits is the fastest one, and if none fits
    no larger micro-batch will.
    """
    micros = micro_batches(work, division)
    for precision in precisions(work, pool):
        for sharding in shardings(work, pool, division):
            yield (recomputed(work, pool, division, precision, sharding, micro) for micro in micros)


def recomputed(
    work: TrainingWork,
    pool: DevicePool,
    division: Division,
    precision: Precision,
    sharding: Shards,
    micro_batch: int,
) -> Iterator[TrainingStep]:
    """Yield the recomputations, the fastest first; one that the user has fixed applies to all layers."""
    for recompute, share in RECOMPUTES:
        if work.allows("recompute", recompute if share == 1 else None):
            yield TrainingStep(
                sizes=work.sizes, sequence=work.sequence, global_batch=work.global_batch,
                micro_batch=micro_batch, device=pool.device, devices=division.devices,
                per_machine=min(pool.per_machine, division.devices), tp=division.tp,
                sequence_parallel=division.tp > 1, pp=division.pp, virtual=division.virtual, cp=division.cp,
                ep=division.ep, dp=division.dp, sharding=sharding[0], shards=sharding[1],
                recompute=recompute, recompute_share=share, precision=precision,
                attention=habits_of(work.software).attention, software=work.software,
            )  # fmt: skip


def cases(work: TrainingWork, pool: DevicePool) -> Iterator[TrainingStep]:
    """Yield every layout, without any pruning."""
    for division in divisions(work, pool):
        for ladder in variants(work, pool, division):
            for rung in ladder:
                yield from rung


def tensor_degrees(work: TrainingWork, pool: DevicePool) -> list[int]:
    """Return degrees that divide the heads and stay within the fast links."""
    sizes, max_tp = work.sizes, min(pool.devices, max(pool.per_machine, _linked(pool)))
    shared = [tp for tp in _divisors(sizes.heads) if sizes.kv_heads % tp == 0 or tp % sizes.kv_heads == 0]
    return [tp for tp in shared if tp <= max_tp and _inner(work) % tp == 0 and work.allows("tp", tp)]


def pipeline_degrees(work: TrainingWork, max_pp: int) -> list[int]:
    """Return numbers of equal stages, and powers of two, whose stages may differ by a layer."""
    layers = work.sizes.layers
    powers = (1 << power for power in range((layers // 2).bit_length()))
    return [pp for pp in sorted({*_divisors(layers), *powers}) if pp <= max_pp and work.allows("pp", pp)]


def context_degrees(work: TrainingWork, max_cp: int) -> list[int]:
    """Return powers of two; a causal sequence is cut in twice as many pieces to give equal work."""
    powers = (1 << power for power in range(max_cp.bit_length()))
    fine = [cp for cp in powers if cp == 1 or work.sequence // cp >= MIN_CUT_TOKENS]
    return [cp for cp in fine if work.sequence % (2 * cp) == 0 or cp == 1 if work.allows("cp", cp)]


def expert_degrees(work: TrainingWork, devices: int) -> list[int]:
    """Experts are divided among devices that otherwise divide the batch."""
    if not work.sizes.experts:
        return [1] if work.allows("ep", 1) else []
    shared = [ep for ep in _divisors(work.sizes.experts) if ep <= devices and devices % ep == 0]
    return [ep for ep in shared if work.allows("ep", ep)]


def virtual_degrees(work: TrainingWork, pp: int, dp: int) -> list[int]:
    """Return numbers of stages on each device.

    The first and the last stage may hold nothing but embedding and head, as those of Llama 3 405B do
    (arXiv:2407.21783, section 3.3.2). Interleaving needs a multiple of pp micro-batches; the smallest
    micro-batch gives most of them.
    """
    if not dp or not work.allows("dp", dp):
        return []
    if pp == 1 or (work.global_batch // dp) % pp:
        return [1] if work.allows("virtual", 1) else []
    stage_layers = -(-work.sizes.layers // pp)
    possible = [v for v in _divisors(stage_layers) if v <= MAX_VIRTUAL and pp * v <= work.sizes.layers + 2]
    return [v for v in possible if work.allows("virtual", v)]


def precisions(work: TrainingWork, pool: DevicePool) -> list[Precision]:
    """Return those of the work that the device has; 16 bits where the work leaves it open."""
    has = pool.device.peak_flops
    return (
        [p for p in work.precisions if p in has] if work.precisions else [p for p in HALVES if p in has][:1]
    )


def shardings(work: TrainingWork, pool: DevicePool, division: Division) -> list[Shards]:
    """Return what replicas divide among them, and how many do.

    Weights are not divided under a pipeline: every micro-batch would gather them again (Megatron and
    torchtitan advise the same). Dividing them within a machine only keeps the gathering on fast links.
    Gradients are divided only on demand: they would be exchanged after every micro-batch instead of once, to
    save less than dividing everything does. Replicas with local updates can divide nothing.
    """
    sharers = division.dp * division.cp
    possible: list[Shards] = [("none", 1)]
    if sharers > 1 and not work.sync.local:
        possible.append(("optimizer", sharers))
        if work.pins.get("sharding") == "gradients":
            possible.append(("gradients", sharers))
        if division.pp == 1:
            possible.append(("full", sharers))
        within = pool.per_machine // division.tp
        if division.pp == 1 and 1 < within < sharers and sharers % within == 0:
            possible.append(("full", within))
    return [pair for pair in possible if work.allows("sharding", pair[0])]


def micro_batches(work: TrainingWork, division: Division) -> list[int]:
    """Return the sizes that divide a replica's share; interleaving needs a multiple of pp of them."""
    share = work.global_batch // division.dp
    possible = [m for m in _divisors(share) if m <= MAX_MICRO_BATCH and work.allows("micro_batch", m)]
    return [m for m in possible if division.virtual == 1 or (share // m) % division.pp == 0]


def _replicas(work: TrainingWork, max_dp: int) -> int:
    """The largest number of replicas that divides the batch."""
    return max((dp for dp in _divisors(work.global_batch) if dp <= max_dp), default=0)


def _linked(pool: DevicePool) -> int:
    return pool.device.domain if pool.device.domain > pool.per_machine else 1


def _inner(work: TrainingWork) -> int:
    """The inner width that tensor parallelism divides."""
    return work.sizes.expert_width if work.sizes.experts else work.sizes.ffn_width


@cache
def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
