"""The time of one layer and one micro-batch on a device: products, attention, memory-bound work, exchanges.

Arithmetic only, on numbers or on arrays (`step_inputs`). Sources: FLOPs of a transformer, Narayanan et al.
2021 (arXiv:2104.04473); what tensor and sequence parallelism exchange, Korthikanti et al. 2022
(arXiv:2205.05198); roofline, Williams et al. 2009; attention, Dao 2023 (arXiv:2307.08691).
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.plan.cost.collectives import exchange_s, larger, ring_s
from windlass.plan.cost.fitted_constants import StepConstants
from windlass.plan.cost.step_inputs import Number, StepInputs

HALF = 2
"""Bytes of an activation."""
ROW_PASSES = 10
"""Over whole rows in a layer, forward: two norms read and write, two sums read twice and write."""
GATE_PASSES = 1.5
SCORE_PASSES = {"unfused": 8, "fused": 6}
"""Over the matrix of scores, forward: written; read and written by softmax and by dropout; read. Masking adds
two where it is not part of the softmax."""
TP_LAUNCH = 0.2
"""What exchanges add to the host's work for a layer."""
RING = 0.15
"""Time that attention takes more for each doubling of the devices around which keys and values travel."""
BACKWARD_FLASH = 2.5
"""Products of attention's backward pass over its forward one: scores are computed again (Dao 2023)."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer and one micro-batch, forward and backward."""

    products: Number
    attention: Number
    elementwise: Number
    tensor: Number
    experts: Number
    host: Number


def product_s(x: StepInputs, known: StepConstants, m: Number, n: Number, k: Number) -> Number:
    """Time of an (m, k) by (k, n) product: arithmetic, and traffic that grows as the product gets thin.

    Products in 8 or 4 bits read less, but what they read has to be cast first, weights aside: those are cast
    once for many micro-batches, or by the shard.
    """
    quantised = x.is_float8 * (known.float8 - 1) + x.is_float4 * (known.float4 - 1) + 1
    rate = x.peak * x.reachable * known.product * quantised
    thin = known.shape * x.base_peak / x.bytes_s * (1 / m + 1 / n + 1 / k)
    thin += (x.is_float8 + x.is_float4) * known.casts * x.peak / x.bytes_s * (1 / n + 1 / k)
    return 2 * m * n * k / rate * (1 + thin)


def layer_products_s(x: StepInputs, known: StepConstants) -> Number:
    """Forward products of one layer, experts included."""
    t, h, tp = x.tokens, x.width, x.tp
    dense = (
        product_s(x, known, t, (x.query + 2 * x.key_value) / tp, h)
        + product_s(x, known, t, h, x.query / tp)
        + x.latent / h * product_s(x, known, t, h, h) / (h * tp)
    )
    ffn = x.ffn + 1e-9
    dense += product_s(x, known, t, x.gates * ffn / tp, h) + product_s(x, known, t, h, ffn / tp)
    rows, width = x.expert_tokens, x.expert_width + 1e-9
    copies = t / tp * x.top_k / rows
    each = product_s(x, known, rows, x.gates * width, h) + product_s(x, known, rows, h, width)
    return dense + x.expert_layers * copies * each / known.experts


def attention_s(x: StepInputs, known: StepConstants) -> tuple[Number, Number]:
    """Forward and backward attention of one layer; only a flash kernel leaves out what the mask hides."""
    flops = 4 * x.tokens * x.sequence * x.query / x.tp
    narrow = x.head_width / (x.head_width + 32)
    rings = 1 + RING * x.cp_doublings
    flash = rings * flops * (1 - x.causal / 2) / (x.base_peak * x.attention_reachable * known.flash * narrow)
    products = flops / (x.base_peak * known.batched * narrow)
    scores = x.tokens * x.sequence * x.query / x.head_width / x.tp * HALF
    passes = SCORE_PASSES["unfused"] * x.unfused + SCORE_PASSES["fused"] * x.fused
    traffic = known.softmax * passes * scores / x.bytes_s
    plain = 1 - x.flash
    forward = x.flash * flash + plain * products + traffic
    return forward, x.flash * BACKWARD_FLASH * flash + 2 * plain * products + 1.5 * traffic


def elementwise_s(x: StepInputs, known: StepConstants) -> Number:
    """Forward work of one layer that is bound by memory."""
    rows = ROW_PASSES * x.width / x.spread
    inner = GATE_PASSES * (x.gates + 1) * x.ffn / x.tp + 2 * (x.query + x.key_value) / x.tp
    routed = x.expert_layers * x.top_k * (6 * x.width + GATE_PASSES * (x.gates + 1) * x.expert_width) / x.tp
    return known.elementwise * HALF * x.tokens * (rows + inner + routed) / x.bytes_s


def tensor_s(x: StepInputs, known: StepConstants) -> Number:
    """Forward exchanges of tensor parallelism in one layer: two sums over its devices."""
    many = x.tp > 1
    size = x.tokens * x.width * HALF
    exposed = known.tp_exposed * (1 + x.tp_overlapped * (known.tp_overlapped - 1))
    return exposed * many * 4 * ring_s(x, known, size, x.tp_group)


def experts_s(x: StepInputs, known: StepConstants) -> Number:
    """Forward exchanges of expert parallelism in one layer: tokens go to their experts and come back."""
    many = x.ep > 1
    row = x.tokens / x.tp * x.width * HALF
    exposed = x.expert_layers * many * known.ep_exposed
    return exposed * 2 * exchange_s(x, known, x.top_k * row, x.far_copies * row, x.ep_group)


def layer_time(x: StepInputs, known: StepConstants) -> LayerTime:
    """Add up one layer, the passes that are computed twice included.

    The host launches kernels while the device computes, so the slower of the two counts.
    """
    again = 1 + x.again
    products = layer_products_s(x, known)
    forward, backward = attention_s(x, known)
    attention = forward * (again + x.again_attention * (1 - x.flash)) + backward
    elementwise = elementwise_s(x, known)
    tensor, experts = tensor_s(x, known), experts_s(x, known)
    launch = known.launch_s * (1 + x.is_eager * (known.eager - 1))
    host = launch * (1 + TP_LAUNCH * (x.tp > 1) + x.expert_layers) * (1.5 + again)
    computing = products * (2 + again) + attention + elementwise * (2 + again)
    idle = larger(host - computing, 0.0)
    return LayerTime(
        products=products * (2 + again),
        attention=attention,
        elementwise=elementwise * (2 + again),
        tensor=tensor * (1 + again),
        experts=experts * (1 + again),
        host=idle,
    )
