"""Converts the shape of one of our models into Sizes of the cost models.

A Shape counts to the last bias, because a checkpoint is checked against it; Sizes hold what matters for
time and memory, matrices only. The encoder differs from the decoders in one thing: its tokens attend to both
sides, so no half of the scores can be skipped (`causal`).
"""

from __future__ import annotations

from windlass.plan.cost.step_config import Sizes
from windlass.spec.shape import BertShape, LlamaShape, Network


def sizes_of(shape: Network) -> Sizes:
    """Return the sizes of any family that a job file can name."""
    llama = shape if isinstance(shape, LlamaShape) else None
    return Sizes(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=llama.kv_heads if llama else shape.heads,
        head_width=shape.head_width,
        ffn_width=shape.ffn_width,
        gated=llama is not None,
        vocabulary=shape.vocabulary,
        tied=llama.tied if llama else True,
        causal=not isinstance(shape, BertShape),
    )
