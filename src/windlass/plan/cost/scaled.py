"""Models of the same form, ever smaller (layer-wise scaling).

Width and depth shrink together: their ratio matters little within wide bounds (Kaplan et al. 2020,
arXiv:2001.08361, section 3.1), so the requested ratio is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from windlass.plan.cost.step_config import Sizes, TrainingStep

FFN_UNIT = 64
MIN_SCALE = 0.05


def smaller_sizes(case: TrainingStep) -> Iterator[Sizes]:
    """Yield them, the largest first; the layout of the case can divide each.

    Heads are coarse steps; between two numbers of heads, layers are removed, as many as there are stages at
    a time.
    """
    sizes = case.sizes
    heads_unit, layers_unit = math.lcm(case.tp, sizes.heads // sizes.kv_heads), case.pp * case.virtual
    for heads in range((sizes.heads - 1) // heads_unit * heads_unit, 0, -heads_unit):
        if heads / sizes.heads < MIN_SCALE:
            return
        maximum = _multiple(sizes.layers * heads / sizes.heads, layers_unit)
        minimum = _multiple(sizes.layers * max(0, heads - heads_unit) / sizes.heads, layers_unit)
        for layers in range(maximum, min(minimum, maximum - 1), -layers_unit):
            yield _scaled(case, heads, layers)


def _scaled(case: TrainingStep, heads: int, layers: int) -> Sizes:
    sizes, scale = case.sizes, heads / case.sizes.heads
    return replace(
        sizes,
        heads=heads,
        kv_heads=heads * sizes.kv_heads // sizes.heads,
        width=round(sizes.width * scale),
        layers=layers,
        dense_layers=round(sizes.dense_layers * layers / sizes.layers),
        ffn_width=_multiple(sizes.ffn_width * scale, FFN_UNIT * case.tp),
        expert_width=_multiple(sizes.expert_width * scale, FFN_UNIT) if sizes.expert_width else 0,
        shared_width=_multiple(sizes.shared_width * scale, FFN_UNIT) if sizes.shared_width else 0,
    )


def _multiple(value: float, unit: int) -> int:
    return max(1, round(value / unit)) * unit
