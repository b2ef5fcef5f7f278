"""What the native library computes of a decoder, and a decoder's shape as the library reads it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windlass.models.rotary import rotary_tables
from windlass.serve.engine.native import ACTIVATIONS, Config
from windlass.spec.shape import DecoderShape


def missing_feature(shape: DecoderShape) -> str | None:
    """Name a feature of a model that the native library does not compute, if there is one."""
    if shape.residual == "parallel" and shape.norm_placement != "before":
        return "norm_placement"
    return "experts" if shape.residual == "parallel" and shape.experts else None


def config_of(shape: DecoderShape, tables: int, blocks: int, *, half: bool) -> Config:
    """Return what all layers have in common; `tables`: how many tables of angles there are."""
    scale = shape.attention_scale
    return Config(
        shape.layers, shape.width, shape.heads, shape.kv_heads, shape.head_width, shape.ffn_width,
        shape.vocabulary, shape.context, int(shape.norm == "layer"), ACTIVATIONS.index(shape.activation),
        int(shape.gated), int(shape.residual == "parallel"), int(shape.query_key_norm == "head"),
        tables, shape.rotary_width // 2 if tables else 0, shape.experts, shape.experts_per_token,
        shape.expert_width, shape.shared_width, int(shape.normalised_experts),
        shape.norm_epsilon, np.float32(1) / np.sqrt(np.float32(shape.head_width)) if scale is None else scale,
        shape.embedding_scale, shape.residual_scale, shape.logit_scale, shape.logit_softcap or 0.0,
        int(half), blocks,
    )  # fmt: skip


def angles_of(shape: DecoderShape) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the tables of cosines and of sines: of all layers, and of those with a window if they differ."""
    if shape.positions == "learned":
        return None
    tables = [rotary_tables(shape)]
    if shape.window_theta is not None:
        tables.append(rotary_tables(shape, windowed=True))
    cosines, sines = (np.stack(found).astype(np.float32) for found in zip(*tables, strict=True))
    return cosines, sines


def table_of(shape: DecoderShape, layer: int) -> int:
    """Return the number of the table that turns a layer's queries and keys; -1: none."""
    if shape.positions == "learned" or layer in shape.unrotated_layers:
        return -1
    return int(shape.window_theta is not None and shape.window_of(layer) is not None)
