"""Bindings of the engine's native library (native/*.cpp); without it the engine computes with torch.

How a decoder's shape becomes what the library reads is here too, and which features it does not compute.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from windlass.models.native_loader import open_library
from windlass.models.rotary import rotary_tables
from windlass.spec.model.decoder import Activation, DecoderShape

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
MIX, OUT, UP, DOWN = range(4)
"""The places of a layer's matrices: q, k and v as one; output; gate and up as one; down."""
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
"""In the order of native/layers.h."""
NORMS = (
    "attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm", "attention.query_norm",
    "attention.key_norm",
)  # fmt: skip
"""The norms that a layer may have, in the order of native/model.h."""

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "windlass_team_new": (_POINTER, [_INT]),
    "windlass_team_free": (None, [_POINTER]),
    "windlass_pack": (_POINTER, [_INT, _INT, _INT, _INT, _POINTER, _POINTER]),
    "windlass_matrix_free": (None, [_POINTER]),
    "windlass_multiply": (None, [_POINTER, _POINTER, _INT, _POINTER, _POINTER]),
    "windlass_model_new": (_POINTER, [_POINTER, _POINTER, _POINTER]),
    "windlass_model_free": (None, [_POINTER]),
    "windlass_layer_matrix": (None, [_POINTER, _INT, _INT, _POINTER, _POINTER]),
    "windlass_layer_norm": (None, [_POINTER, _INT, _INT, _POINTER, _POINTER]),
    "windlass_layer_expert": (None, [_POINTER, _INT, *[_POINTER] * 4]),
    "windlass_layer_router": (None, [_POINTER, _INT, *[_POINTER] * 7]),
    "windlass_layer_attention": (None, [_POINTER, _INT, _INT, ctypes.c_float, _POINTER, _INT]),
    "windlass_ends": (None, [_POINTER] * 8),
    "windlass_adapter_new": (_POINTER, [_POINTER]),
    "windlass_adapter_delta": (None, [_POINTER, _INT, _INT, _INT, _POINTER, _POINTER]),
    "windlass_adapter_free": (None, [_POINTER]),
    "windlass_model_adapters": (None, [_POINTER, _POINTER, _INT]),
    "windlass_run": (_INT, [_POINTER, _POINTER, _POINTER]),
    "windlass_draw": (None, [_POINTER, _POINTER, _INT, _INT, *[_POINTER] * 7, _INT]),
    "windlass_score": (None, [_POINTER, _POINTER, _INT, _INT, _POINTER, _INT, *[_POINTER] * 3]),
}


class Config(ctypes.Structure):
    """What windlass_model_new reads."""

    _fields_ = (
        *(
            (name, _INT)
            for name in (
                "layers", "width", "heads", "kv_heads", "head_width", "ffn_width", "vocabulary", "context",
                "subtracts_mean", "activation", "is_gated", "is_parallel", "norms_heads", "tables", "pairs",
                "experts", "experts_per_token", "expert_width", "shared_width", "normalises_experts",
            )
        ),
        *(
            (name, ctypes.c_float)
            for name in (
                "epsilon", "attention_scale", "embedding_scale", "residual_scale", "logit_scale",
                "logit_softcap",
            )
        ),
        ("half_keys", _INT),
        ("blocks", _INT),
    )  # fmt: skip


class Batch(ctypes.Structure):
    """What windlass_run reads."""

    _fields_ = (
        *((name, _INT) for name in ("rows", "spans", "outs")),
        *((name, _POINTER) for name in ("tokens", "span_fields", "tables", "out_rows", "logits", "hidden")),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library, or None if it was not built or cannot run on this processor."""
    return open_library(Path(__file__).parent, "windlass", _SIGNATURES)


def at(array: NDArray[Any] | None) -> int | None:
    """Return the address of a contiguous array's first element."""
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data


class ThreadPool:
    """Threads of the library; see native/team.h."""

    def __init__(self, shared: ctypes.CDLL, threads: int) -> None:
        self._shared = shared
        self.threads = threads
        self.handle = shared.windlass_team_new(threads)

    def __del__(self) -> None:
        self._shared.windlass_team_free(self.handle)


class Matrix:
    """A packed matrix of n rows and k columns; see native/matrix.h."""

    def __init__(
        self,
        shared: ctypes.CDLL,
        kind: str,
        values: NDArray[Any],
        *,
        columns: int,
        group: int = 0,
        scale: NDArray[np.float32] | None = None,
    ) -> None:
        self._shared = shared
        self.rows, self.columns = len(values), columns
        self.handle = shared.windlass_pack(KINDS[kind], self.rows, columns, group, at(values), at(scale))
        if not self.handle:
            raise MemoryError(f"no memory for a matrix of {self.rows} x {columns}")

    def multiply(self, thread_pool: ThreadPool, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return x W'; each row of the result depends on the same row of x alone."""
        y = np.empty((len(x), self.rows), np.float32)
        self._shared.windlass_multiply(thread_pool.handle, self.handle, len(x), at(x), at(y))
        return y

    def __del__(self) -> None:
        self._shared.windlass_matrix_free(self.handle)


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
