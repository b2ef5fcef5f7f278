"""How fast a model trains.

A step is its matrix products at some share of the machine's peak. The share grows with the width,
because narrow products leave the arithmetic units waiting and the work around them (norms, rotary
angles, optimizer) weighs more; the curve was fitted to the CPU runs in docs/benchmarks.md.
"""

from __future__ import annotations

from windlass.spec.shape import Shape

BEST_SHARE = 0.80
HALF_WIDTH = 110.0
STEP_OVERHEAD_S = 0.004


def peak_share(width: int) -> float:
    """Share of the machine's matrix-product peak that training reaches at this width."""
    return BEST_SHARE * width / (width + HALF_WIDTH)


def step_seconds(shape: Shape, batch_tokens: int, peak_flops: float) -> float:
    """Time of one optimizer step."""
    flops = shape.training_flops_per_token() * batch_tokens
    return flops / (peak_flops * peak_share(shape.width)) + STEP_OVERHEAD_S


def tokens_per_second(shape: Shape, batch_tokens: int, peak_flops: float) -> float:
    return batch_tokens / step_seconds(shape, batch_tokens, peak_flops)
