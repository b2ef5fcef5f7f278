"""The numbers of a TrainingStep that its time depends on, so that formulas can be plain arithmetic.

Input: a TrainingStep. Output: StepInputs, whose fields are numbers; `stacked` puts those of many cases side
by side as arrays. The formulas of `step_time` use nothing but arithmetic, so the same lines predict one case
within a search and thousands of cases within a fit. A choice in a TrainingStep is a 0 or a 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from windlass.plan.cost.software_defaults import habits_of
from windlass.plan.cost.step_config import Device, TrainingStep

Number = Any
"""A float, or an array with one float for each case."""

TYPICAL_REACHABLE = 0.78
"""Share of the peak that large bfloat16 products reach where no measurement exists."""
SUSTAINED = {"H100-96GB-HBM2e-500W": 0.85, "H": 0.925}
"""Share of it that is left when a device computes for hours, by the beginning of its name: Hopper meets its
power limit where an A100 does not."""
ATTENTION = {
    "flash": {"A100": 1.0, "H": 0.62, "B": 0.62, "GB": 0.62},
    "flash3": {"A100": 1.0, "H": 1.0, "B": 0.75, "GB": 0.75},
}
"""Share of the peak that flash attention gets, over that on an A100: its second version knows no Hopper (Shah
et al. 2024, arXiv:2407.08608: 35% of the peak, against up to 73% on an A100; the third gets 75%). On
Blackwell products grew faster than exponentials, which bound it."""
OTHER_ATTENTION = 0.8
LOSS_BYTES = {False: 16, True: 6}
"""Read and written for one word of one token by softmax and loss, forward and backward: by way of float32, or
fused, where logits are read and their gradients written in 16 bits."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that exchange something, of which `inside` each are in one machine."""

    members: Number
    inside: Number
    far_doublings: Number
    """From one machine to all: the logarithm to base 2."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Of one case, or of many at once."""

    tokens: Number
    """Of one micro-batch on one device, before tensor parallelism divides the width."""
    sequence: Number
    micro_batches: Number
    layers: Number
    max_layers: Number
    """Of the stage that has most of them."""
    last_layers: Number
    """Of the stage that has the head too."""
    width: Number
    query: Number
    key_value: Number
    head_width: Number
    ffn: Number
    """Width of the feed-forward part that every token meets."""
    gates: Number
    vocabulary: Number
    causal: Number
    expert_layers: Number
    """Share of the layers that have experts."""
    top_k: Number
    far_copies: Number
    """Other machines that a token is sent to; one that holds several of its experts gets it once."""
    expert_width: Number
    expert_tokens: Number
    """Rows that one expert on one device sees."""
    latent: Number
    """Weights of one layer's compressed attention beyond those of query, key, value and output."""
    layer_weights: Number
    """Of one layer on one device."""
    end_weights: Number
    """Of embedding and head on the device that holds most of them."""
    tp: Number
    tp_group: DeviceGroup
    tp_overlapped: Number
    spread: Number
    """Devices over which elementwise work on whole rows is divided: tp with sequence parallelism, else 1."""
    pp: Number
    virtual: Number
    pp_inside: Number
    send_spread: Number
    """Devices that each send a part of what a stage passes on."""
    sends_overlapped: Number
    cp_doublings: Number
    dp: Number
    dp_group: DeviceGroup
    ep: Number
    ep_group: DeviceGroup
    shards: Number
    shard_group: DeviceGroup
    """Devices that gather weights from each other, neighbours first."""
    copy_group: DeviceGroup
    """Devices that hold the same shard of them: one of each shard group."""
    machine_doublings: Number
    gradient_bytes: Number
    by_layer: Number
    """Whether layers are gathered and their gradients scattered one by one."""
    is_sharded: Number
    gathers: Number
    """Times that a layer is gathered, if at all: for the backward pass again, unless it was kept for that."""
    gathered_share: Number
    """Of the micro-batches, for which layers are gathered; a pipeline keeps them for all of a step."""
    again: Number
    """Share of the layers whose forward pass is computed twice."""
    again_attention: Number
    is_eager: Number
    loss_bytes: Number
    unfused: Number
    fused: Number
    flash: Number
    is_float8: Number
    is_float4: Number
    peak: Number
    base_peak: Number
    """In bfloat16, which attention uses whatever the products around it use."""
    reachable: Number
    attention_reachable: Number
    bytes_s: Number
    link_bytes_s: Number
    network_bytes_s: Number


def step_inputs(case: TrainingStep) -> StepInputs:
    """Return the numbers of one case."""
    sizes, device = case.sizes, case.device
    query, key_value = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    inside = device.domain if device.domain > case.per_machine else case.per_machine
    inner = case.tp * case.cp
    half = (
        device.peak_flops.get("bfloat16") or device.peak_flops.get("float16") or device.peak_flops["float32"]
    )
    expert, habits = sizes.experts > 0, habits_of(case.software)
    fullest, last = stage_layers(case)
    linear = sizes.width * 2 * (query + key_value)
    return StepInputs(
        tokens=case.micro_batch * case.sequence / case.cp,
        sequence=case.sequence,
        micro_batches=case.micro_batches,
        layers=sizes.layers,
        max_layers=fullest,
        last_layers=last,
        width=sizes.width,
        query=query,
        key_value=key_value,
        head_width=sizes.head_width,
        ffn=_dense_ffn(case),
        gates=2 if sizes.gated else 1,
        vocabulary=sizes.vocabulary,
        causal=float(sizes.causal),
        expert_layers=(sizes.layers - sizes.dense_layers) / sizes.layers if expert else 0.0,
        top_k=sizes.top_k,
        far_copies=_far_copies(sizes.top_k, case.ep / max(1, min(case.ep, inside // case.tp))),
        expert_width=sizes.expert_width,
        expert_tokens=_expert_tokens(case) if expert else 1.0,
        latent=max(0, sizes.attention_weights - linear) if sizes.latent else 0.0,
        layer_weights=_layer_weights(case),
        end_weights=sizes.vocabulary * sizes.width / case.tp * (2 if case.pp == 1 and not sizes.tied else 1),
        tp=case.tp,
        tp_group=group(case.tp, inside),
        tp_overlapped=float(habits.overlaps_tensor if case.overlaps_tensor is None else case.overlaps_tensor),
        spread=case.tp if case.sequence_parallel else 1,
        pp=case.pp,
        virtual=case.virtual,
        pp_inside=float(inner * case.dp * 2 <= inside),
        send_spread=case.tp if case.sequence_parallel or habits.divides_sends else 1,
        sends_overlapped=float(habits.overlaps_sends and case.virtual > 1),
        cp_doublings=math.log2(case.cp),
        dp=case.dp * case.cp,
        dp_group=group(case.dp * case.cp, inside // case.tp),
        ep=case.ep,
        ep_group=group(case.ep, inside // case.tp),
        shards=case.shards,
        shard_group=group(case.shards, inside // case.tp),
        copy_group=group(max(1, case.dp * case.cp // case.shards), inside // (case.tp * case.shards)),
        machine_doublings=math.log2(max(1.0, case.devices / inside)),
        gradient_bytes=case.gradient_bytes or (2 if case.precision == "float16" else 4),
        by_layer=float(case.sharding == "full" or (case.sharding == "gradients" and habits.gathers_layers)),
        is_sharded=float(case.sharding != "none"),
        gathers=2.0 if case.sharding == "full" else 1.0,
        gathered_share=1.0 if case.pp == 1 else 1 / case.micro_batches,
        again=case.recompute_share if case.recompute == "full" else 0.0,
        again_attention=case.recompute_share if case.recompute == "selective" else 0.0,
        is_eager=float(habits.eager),
        loss_bytes=LOSS_BYTES[case.fused_loss],
        unfused=float(case.attention == "unfused"),
        fused=float(case.attention == "fused-softmax"),
        flash=float(case.attention.startswith("flash")),
        is_float8=float(case.precision == "float8"),
        is_float4=float(case.precision == "float4"),
        peak=device.peak_flops[case.precision],
        base_peak=half,
        reachable=reachable_share(device),
        attention_reachable=_of_device(ATTENTION.get(case.attention, {}), device.name, OTHER_ATTENTION),
        bytes_s=device.memory_bytes_s,
        link_bytes_s=device.link_bytes_s,
        network_bytes_s=device.network_bytes_s,
    )


def stacked(inputs: Iterable[StepInputs]) -> StepInputs:
    """Return the numbers of many cases as arrays."""
    return _columns(list(inputs))  # type: ignore[no-any-return]


def _columns(rows: list[Any]) -> Any:
    """Turn records of numbers into one record of arrays, records within them too."""
    if not isinstance(rows[0], StepInputs | DeviceGroup):
        return np.array(rows, float)
    kind: Any = type(rows[0])
    return kind(*(_columns([getattr(row, field.name) for row in rows]) for field in fields(kind)))


def group(members: int, inside: int) -> DeviceGroup:
    """Return a group of which at most `inside` are in one machine."""
    inside = max(1, min(members, inside))
    return DeviceGroup(members, inside, math.log2(members / inside))


def stage_layers(case: TrainingStep) -> tuple[int, int]:
    """Return the layers of the fullest stage and of the last one, which has the head as well.

    Megatron divides layers evenly; nanotron fills a stage until it exceeds its share of the weights, head
    included; a balanced cut makes the largest sum as small as it can be.
    """
    layers, pp = case.sizes.layers, case.pp
    if pp == 1:
        return layers, layers
    head = case.sizes.vocabulary * case.sizes.width / case.sizes.active_layer_weights
    if case.software.startswith("nanotron"):
        fullest = min(layers, int((layers + head) / pp) + 1)
        return fullest, max(0, layers - fullest * (pp - 1))
    if "megatron" in case.software or layers % pp == 0:
        return -(-layers // pp), layers // pp
    fullest = max(1, math.ceil((layers + head) / pp - 1e-9))
    return fullest, max(0, layers - fullest * (pp - 1))


def reachable_share(device: Device) -> float:
    """Return what share of the peak large matrix products reach for hours."""
    share = TYPICAL_REACHABLE
    if device.reachable_flops is not None and "bfloat16" in device.peak_flops:
        share = device.reachable_flops / device.peak_flops["bfloat16"]
    return share * _of_device(SUSTAINED, device.name, 1.0)


def _of_device(table: dict[str, float], name: str, default: float) -> float:
    return next((share for start, share in table.items() if name.startswith(start)), default)


def _dense_ffn(case: TrainingStep) -> float:
    """Width of the part without experts, on average over the layers."""
    sizes = case.sizes
    if not sizes.experts:
        return sizes.ffn_width
    dense = sizes.dense_layers / sizes.layers
    return dense * sizes.ffn_width + (1 - dense) * sizes.shared_width


def _expert_tokens(case: TrainingStep) -> float:
    copies = case.micro_batch * case.sequence / (case.cp * case.tp) * case.sizes.top_k
    return copies * case.ep / case.sizes.experts


def _far_copies(top_k: int, machines: float) -> float:
    """Expected other machines among `top_k` draws (as DeepEP sends, arXiv:2412.19437, section 3.2)."""
    return (machines - 1) * (1 - (1 - 1 / machines) ** top_k)


def _layer_weights(case: TrainingStep) -> float:
    sizes = case.sizes
    if not sizes.experts:
        return sizes.layer_weights / case.tp
    experts = sizes.experts * sizes.ffn_weights(sizes.expert_width)
    rest = (sizes.layer_weights - experts) / case.tp + experts / case.ep
    dense = sizes.dense_layers / sizes.layers
    return (1 - dense) * rest + dense * sizes.dense_layer_weights / case.tp
