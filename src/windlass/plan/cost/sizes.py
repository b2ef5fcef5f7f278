"""Converts the shape of one of our models into Sizes of the cost models.

A Shape counts to the last bias, because a checkpoint is checked against it; Sizes hold what matters for
time and memory, matrices only. The encoder differs from the decoders in one thing: its tokens attend to both
sides, so no half of the scores can be skipped (`causal`).
"""

from __future__ import annotations

from windlass.plan.cost.step_config import Sizes
from windlass.spec.shape import BertShape, DecoderShape, Network


def sizes_of(shape: Network) -> Sizes:
    """Return the sizes of any family that a job file can name."""
    decoder = shape if isinstance(shape, DecoderShape) else None
    sparse = decoder if decoder is not None and decoder.experts else None
    return Sizes(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=decoder.kv_heads if decoder else shape.heads,
        head_width=shape.head_width,
        ffn_width=shape.ffn_width,
        gated=decoder is not None and decoder.gated,
        vocabulary=shape.vocabulary,
        tied=decoder is None or decoder.tied,
        causal=not isinstance(shape, BertShape),
        experts=sparse.experts if sparse else 0,
        top_k=sparse.experts_per_token if sparse else 0,
        expert_width=sparse.expert_width if sparse else 0,
        shared_width=sparse.shared_width if sparse else 0,
        dense_layers=sparse.layers - sparse.sparse_layers if sparse else 0,
    )
