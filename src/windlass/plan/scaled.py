"""Models of the same form, ever smaller (layer-wise scaling).

Width and depth shrink together: their ratio matters little within wide bounds (Kaplan et al. 2020,
arXiv:2001.08361, section 3.1), so the one that was asked for is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from windlass.plan.case import Case, Sizes

FFN_UNIT = 64
LEAST_SCALE = 0.05


def smaller_sizes(case: Case) -> Iterator[Sizes]:
    """Yield them, the largest first; the layout of the case can divide each."""
    sizes, group = case.sizes, case.sizes.heads // case.sizes.kv_heads
    unit = math.lcm(case.tp, group)
    for heads in range((sizes.heads - 1) // unit * unit, 0, -unit):
        scale = heads / sizes.heads
        if scale < LEAST_SCALE:
            return
        yield replace(
            sizes,
            heads=heads,
            kv_heads=heads // group,
            width=round(sizes.width * scale),
            layers=_multiple(sizes.layers * scale, case.pp * case.virtual),
            dense_layers=round(sizes.dense_layers * scale),
            ffn_width=_multiple(sizes.ffn_width * scale, FFN_UNIT * case.tp),
            expert_width=_multiple(sizes.expert_width * scale, FFN_UNIT) if sizes.expert_width else 0,
            shared_width=_multiple(sizes.shared_width * scale, FFN_UNIT) if sizes.shared_width else 0,
        )


def _multiple(value: float, unit: int) -> int:
    return max(1, round(value / unit)) * unit
