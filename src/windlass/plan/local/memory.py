"""The peak memory of each process of a run on this machine.

Input: a step to be predicted and a profile. Output: bytes of resident memory of the fullest process. What
autograd keeps is counted in models/decoder.py; all is float32. Two moments can be the
fullest: the end of a forward pass, when all activations are there, and the end of the backward pass, when
all gradients are. What the allocator wastes is measured: by the probe, in one process of known sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from windlass.plan.local.kernel_costs import LOSS_CHUNK_TOKENS, VALUE_BYTES, Dims, dims_of
from windlass.plan.local.profile import Profile, ResidentMemory
from windlass.plan.local.stages import stage_layers
from windlass.plan.local.step import StepShape, held_weights
from windlass.spec.layout import Layout
from windlass.spec.shape import DecoderShape

MOMENTS = 2
SCORES = 3
"""Copies of a chunk's scores: themselves, their exponentials, their gradients."""
GATHERED_LAYERS = 2
"""Of sharded weights: the one that computes and the one that is fetched ahead."""
COPIES = 3
"""Of what sharded processes borrow over gloo: weights, gradients, and the buffers of their exchange."""


@dataclass(frozen=True)
class LocalMemory:
    """The predicted peak of a process."""

    bytes: int
    parts: dict[str, float]


def local_memory(profile: Profile, step: StepShape) -> LocalMemory:
    """Predict the peak of resident memory of the fullest process."""
    tiny = _tiny(profile, step.layout.world)
    waste = allocator_share(profile)
    parts = {"process": tiny.peak_bytes - waste * held_bytes(_step_of(tiny))}
    parts |= {name: waste * size for name, size in fullest(step).items()}
    parts["waiting exchanges"] = waste * _lagging(step)
    return LocalMemory(int(sum(parts.values())), parts)


def allocator_share(profile: Profile) -> float:
    """Return the bytes held per byte requested, from two processes of different sizes."""
    alone = sorted((h for h in profile.held if h.processes == 1), key=lambda h: h.peak_bytes)
    small, large = alone[0], alone[-1]
    requested = held_bytes(_step_of(large)) - held_bytes(_step_of(small))
    return (large.peak_bytes - small.peak_bytes) / requested if requested > 0 else 1.0


def held_bytes(step: StepShape) -> float:
    return sum(fullest(step).values())


def fullest(step: StepShape) -> dict[str, float]:
    """Return what the fullest process has at its fullest moment, by what it is for."""
    positions = range(step.layout.pp)
    return max((_at(step, position) for position in positions), key=lambda parts: sum(parts.values()))


def _at(step: StepShape, position: int) -> dict[str, float]:
    """Return what the process at a position along the pipeline has."""
    dims, layout = dims_of(step.shape), step.layout
    weights = held_weights(step.shape, layout)
    tokens = step.micro_batch_sequences * step.shape.context / layout.cp
    layers = stage_layers(step.shape, layout)[position]
    has_ends = layout.pp == 1 or position == layout.position_of(layout.stage_count - 1)
    table = VALUE_BYTES * dims.vocabulary * dims.width / layout.tp
    flying = _in_flight(layout, position, step.micro_batches)
    kept, again = _layer_bytes(dims, layout, tokens)
    activations = flying * layers * kept + again + VALUE_BYTES * tokens * dims.mixed_width
    loss = table + VALUE_BYTES * (
        5 * tokens * dims.width + SCORES * _chunk(tokens) * dims.vocabulary / layout.tp
    )
    borrowed = _borrowed(dims, layout, layers)
    forward_end = activations + (loss if has_ends else 0.0)
    gradients = VALUE_BYTES * weights
    backward_end = gradients + (table if has_ends and dims.tied else 0.0)
    if step.micro_batches > 1:
        forward_end += gradients
    state = VALUE_BYTES * weights
    at_peak = max(forward_end, backward_end)
    return {
        "weights": state,
        "moments": MOMENTS * state,
        "borrowed weights": borrowed,
        "gradients and activations": at_peak,
    }


def _layer_bytes(dims: Dims, layout: Layout, tokens: float) -> tuple[float, float]:
    """Return what a layer keeps for its backward pass, and what one layer needs again when it recomputes."""
    tp = layout.tp
    apart = tp if layout.sequence else 1
    mixed = 2 * dims.attention_width + 2 * dims.kv_width
    if dims.gated:
        whole = 2 * dims.width + 4 * dims.width / apart + (mixed + 4 * dims.ffn_width) / tp
    else:
        whole = 2 * dims.width + 2 * dims.width / apart + (mixed + 2 * dims.ffn_width) / tp
    products = dims.width / apart * 3 + (mixed + (2 if dims.gated else 1) * dims.ffn_width) / tp
    kept = {"none": whole, "selective": products, "full": dims.width / apart}[layout.recompute]
    again = whole - kept
    return VALUE_BYTES * tokens * kept, VALUE_BYTES * tokens * again


def _borrowed(dims: Dims, layout: Layout, layers: int) -> float:
    """Return what sharded processes fetch, in theory: the ends for the whole pass, layers as they come, and
    gradients of the ends before they are dealt out."""
    if layout.sharded == 1:
        return 0.0
    table = dims.end_weights * 2
    layer = min(layers, GATHERED_LAYERS) * dims.layer_weights
    return VALUE_BYTES * (table + layer) / layout.tp


def _lagging(step: StepShape) -> float:
    """Return what sharded processes hold beyond that over gloo, whose exchanges lag behind computing.

    When the backward pass ends, whole weights, whole gradients and the buffers to deal them out in are there.
    """
    dims, layout = dims_of(step.shape), step.layout
    if layout.sharded == 1:
        return 0.0
    layers = max(stage_layers(step.shape, layout))
    whole = VALUE_BYTES * COPIES * (dims.end_weights + layers * dims.layer_weights) / layout.tp
    return max(0.0, whole - _borrowed(dims, layout, layers))


def _in_flight(layout: Layout, position: int, micro: int) -> int:
    """Return how many micro-batches a process holds activations of: under 1F1B, those that are under way
    behind it (Narayanan et al. 2021, arXiv:2104.04473, section 2.2)."""
    if layout.pp == 1:
        return 1
    return micro if layout.schedule in ("gpipe", "looped") else min(micro, layout.pp - position)


def _chunk(tokens: float) -> float:
    return min(tokens, LOSS_CHUNK_TOKENS)


def _tiny(profile: Profile, world: int) -> ResidentMemory:
    """Return the smallest process that was measured, among others if this one is."""
    alike = [h for h in profile.held if (h.processes > 1) == (world > 1)] or list(profile.held)
    return min(alike, key=lambda h: h.peak_bytes)


def _step_of(held: ResidentMemory) -> StepShape:
    shape = DecoderShape(
        vocabulary=held.vocabulary,
        context=held.context,
        layers=held.layers,
        width=held.width,
        heads=held.heads,
        kv_heads=held.heads,
        ffn_width=held.ffn_width,
        tied=True,
    )
    alone = StepShape(shape, Layout(), held.sequences, held.sequences, threads=1)
    return replace(alone, layout=Layout(dp=held.processes), batch_sequences=held.sequences * held.processes)
