"""How long one step of training takes, with an interval and its parts.

    TrainingStep -> step_inputs -> step_layer (one layer, one micro-batch) -> pipeline, gradients -> seconds

Each part is a formula with a source; what formulas cannot know (kernels, overlap, latencies) are the few
constants of `fitted_constants`. The pipeline is that of 1F1B, interleaved or not (arXiv:2104.04473, section
2.2); FSDP gathers weights layer by layer behind the computation (Zhao et al. 2023, arXiv:2304.11277).
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.plan.cost.collectives import larger, ring_s, send_s
from windlass.plan.cost.fitted_constants import FittedConstants, StepConstants, published
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.cost.step_inputs import Number, StepInputs, step_inputs
from windlass.plan.cost.step_layer import HALF, layer_time, product_s

OPTIMIZER_BYTES = 40
"""Read and written for one weight by Adam in mixed precision: gradient, master, two moments, weight."""
MARGIN = 0.03
"""Share by which a pipeline has to promise to be faster than a layout without one. Predictions do not tell
layouts apart that are closer than that, and where every stage waits for the slowest more can go wrong."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step; nine in ten steps of clusters never seen lie between low and high."""

    seconds: float
    low: float
    high: float
    parts: dict[str, float]


def step_time(case: TrainingStep, known: FittedConstants | None = None) -> StepTime:
    """Predict one case."""
    known = known or published()
    parts = step_parts(step_inputs(case), known.constants(case.software))
    seconds = float(sum(parts.values()))
    return StepTime(seconds, seconds * known.low, seconds * known.high, parts)


def ranked_s(case: TrainingStep, seconds: float) -> float:
    """Return the seconds by which layouts are compared."""
    return seconds * (1 + MARGIN * (case.pp > 1))


def step_parts(x: StepInputs, known: StepConstants) -> dict[str, Number]:
    """Return the seconds of each part; they add up to the step."""
    layer, head = layer_time(x, known), head_s(x, known)
    computing = layer.products + layer.attention + layer.elementwise + layer.host
    gather = gather_s(x, known, computing)
    each = computing + layer.tensor + layer.experts + gather
    longest = larger(x.max_layers * each, x.last_layers * each + head)
    passes = x.micro_batches * x.max_layers
    parts = {
        "products": passes * layer.products,
        "attention": passes * layer.attention,
        "elementwise": passes * layer.elementwise,
        "tensor exchange": passes * layer.tensor,
        "expert exchange": passes * layer.experts,
        "weights gathered": passes * gather,
        "host": passes * layer.host + known.step_s,
        "head and loss": x.micro_batches * (longest - x.max_layers * each),
        "pipeline idle": (x.layers * each + head - longest) / x.virtual,
        "pipeline sends": sends_s(x, known, computing),
        "gradient exchange": gradients_s(x, known, computing),
        "optimizer": optimizer_s(x, known),
    }
    parts["stragglers"] = known.straggle * x.machine_doublings * sum(parts.values())
    return parts


def head_s(x: StepInputs, known: StepConstants) -> Number:
    """Product with the vocabulary and the loss, forward and backward."""
    words = x.vocabulary / x.tp
    loss = known.elementwise * x.loss_bytes * x.tokens * words / x.bytes_s
    return 3 * product_s(x, known, x.tokens, words, x.width) + loss


def gather_s(x: StepInputs, known: StepConstants, computing: Number) -> Number:
    """What gathering weights and scattering gradients adds to one layer and one micro-batch."""
    size = x.layer_weights * HALF
    gathered, scattered = (ring_s(x, known, times * size, x.shard_group) for times in (1, 1.5))
    exchange = x.gathers * gathered + scattered
    exposed = larger(exchange - computing, known.gather_exposed * exchange)
    return x.by_layer * (x.shards > 1) * x.gathered_share * exposed


def sends_s(x: StepInputs, known: StepConstants, computing: Number) -> Number:
    """Activations forward and gradients back, at every stage boundary that a micro-batch crosses.

    What passes behind the next piece costs only what is longer than its forward half, the shorter one; while
    a pipeline fills and drains there is nothing to hide behind.
    """
    sent = send_s(x, known, x.tokens * x.width * HALF / x.send_spread, x.pp_inside)
    each = known.send_exposed * sent + known.send_s
    piece = computing * x.max_layers / x.virtual / 3
    steady = each + x.sends_overlapped * (larger(each - piece, 0.0) - each)
    return (x.pp > 1) * 2 * (x.micro_batches * x.virtual * steady + (x.pp - 1) * each)


def gradients_s(x: StepInputs, known: StepConstants, computing: Number) -> Number:
    """Sum of gradients over replicas, of which the backward pass of the last micro-batch hides a part.

    Where the optimizer is divided, gradients are scattered and weights gathered around its step. Where groups
    of devices divide everything, a device sums its shard with those of the other groups.
    """
    weights = x.max_layers * x.layer_weights + x.end_weights
    scatter = ring_s(x, known, weights * x.gradient_bytes, x.dp_group)
    gather = ring_s(x, known, weights * HALF, x.dp_group)
    window = x.max_layers * computing * 2 / 3
    summed = larger(known.dp_exposed * 2 * scatter, 2 * scatter - window)
    divided = known.divided_exposed * (scatter + gather)
    copies = ring_s(x, known, weights * x.gradient_bytes / x.shards, x.copy_group)
    shards = (x.dp > x.shards) * larger(known.dp_exposed * 2 * copies, 2 * copies - window)
    whole = (x.dp > 1) * ((1 - x.is_sharded) * summed + x.is_sharded * divided)
    return x.by_layer * shards + (1 - x.by_layer) * whole


def optimizer_s(x: StepInputs, known: StepConstants) -> Number:
    """Adam's passes over its state, which memory bounds."""
    weights = (x.max_layers * x.layer_weights + x.end_weights) / x.shards
    return known.optimizer * OPTIMIZER_BYTES * weights / x.bytes_s
