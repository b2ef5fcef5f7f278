"""The runner on CPU cores, by the native library; torch is not loaded.

Weights are packed matrix by matrix, so loading needs little memory besides the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.weights import Float, Grouped, ModelWeights
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.native import (
    DOWN,
    MIX,
    NORMS,
    OUT,
    UP,
    Batch,
    Matrix,
    ThreadPool,
    angles_of,
    at,
    config_of,
    table_of,
)
from windlass.serve.engine.quantise import quantise
from windlass.serve.engine.runner import Computed, Span
from windlass.spec.errors import BadInput
from windlass.spec.shape import DecoderShape

PRECISIONS = ("float32", "bfloat16", "int8", "int4")
BITS = {"int8": 8, "int4": 4}
MAX_RANK = 256
PARTS = {
    MIX: ("attention.query", "attention.key", "attention.value"),
    OUT: ("attention.output",),
    UP: ("ffn.gate", "ffn.up"),
    DOWN: ("ffn.down",),
}
"""The matrices that are concatenated by rows in each place; not all families have a gate."""


class NativeRunner:
    """Packed weights, blocks of keys and values, and the threads that compute."""

    def __init__(
        self,
        shared: ctypes.CDLL,
        weights: ModelWeights,
        *,
        blocks: int,
        threads: int,
        precision: str | None = None,
        half: bool = False,
    ) -> None:
        shape = weights.shape
        assert isinstance(shape, DecoderShape)
        self.shape, self.blocks = shape, blocks
        self.precision = _precision(weights.precision, precision)
        self._shared, self.thread_pool = shared, ThreadPool(shared, threads)
        self._kept: list[Any] = []
        self._adapters: list[int] = []
        self._logits_BV = np.empty((0, shape.vocabulary), np.float32)
        self._model = shared.windlass_model_new(*self._sizes(blocks, half))
        if not self._model:
            raise MemoryError(f"no memory for {blocks} blocks of keys and values")
        for layer in range(shape.layers):
            self._load_layer(weights, layer)
        self._load_ends(weights)

    def run(self, spans: Sequence[Span], tables: NDArray[np.int32], *, hidden: bool = False) -> Computed:
        tokens: list[int] = []
        fields: list[int] = []
        outs: list[int] = []
        width = tables.shape[1]
        for span in spans:
            row, length = len(tokens), len(span.tokens)
            tokens += span.tokens
            fields += (row, length, span.position, span.slot * width, span.adapter)
            outs += range(row + length - span.outs, row + length)
        tokens_T, fields_S5, outs_B = (np.array(values, np.int32) for values in (tokens, fields, outs))
        logits_BV = self._scores(len(outs))
        hidden_TD = np.empty((len(tokens), self.shape.width), np.float32) if hidden else None
        batch = Batch(
            len(tokens), len(spans), len(outs),
            at(tokens_T), at(fields_S5), at(tables), at(outs_B), at(logits_BV), at(hidden_TD),
        )  # fmt: skip
        if self._shared.windlass_run(self._model, self.thread_pool.handle, ctypes.byref(batch)):
            raise MemoryError(f"no memory for a step of {len(tokens)} tokens")
        return Computed(logits_BV, hidden_TD)

    def take_adapter(self, adapter: Adapter) -> int:
        if adapter.rank > MAX_RANK:
            raise BadInput(f"adapter {adapter.name}: rank {adapter.rank} is above {MAX_RANK}")
        handle = self._shared.windlass_adapter_new(self._model)
        for layer in range(self.shape.layers):
            for place, names in PARTS.items():
                self._add_deltas(handle, adapter, layer, place, names)
        self._adapters.append(handle)
        listed = (ctypes.c_void_p * len(self._adapters))(*self._adapters)
        self._shared.windlass_model_adapters(self._model, listed, len(self._adapters))
        return len(self._adapters) - 1

    def __del__(self) -> None:
        for handle in getattr(self, "_adapters", []):
            self._shared.windlass_adapter_free(handle)
        if getattr(self, "_model", None):
            self._shared.windlass_model_free(self._model)

    def _sizes(self, blocks: int, half: bool) -> tuple[Any, int | None, int | None]:
        tables = angles_of(self.shape)
        self._kept.append(tables)
        config = config_of(self.shape, 0 if tables is None else len(tables[0]), blocks, half=half)
        return ctypes.byref(config), *((None, None) if tables is None else map(at, tables))

    def _load_layer(self, weights: ModelWeights, layer: int) -> None:
        for place, names in PARTS.items():
            if place in (MIX, OUT) or not self.shape.is_sparse(layer):
                parts = self._joined(weights, *(f"layers.{layer}.{name}" for name in names))
                self._shared.windlass_layer_matrix(self._model, layer, place, *parts)
        if self.shape.is_sparse(layer):
            self._load_experts(weights, f"layers.{layer}.ffn", layer)
        for which, name in enumerate(NORMS):
            weight, bias = self._norm(weights, f"layers.{layer}.{name}")
            self._shared.windlass_layer_norm(self._model, layer, which, at(weight), at(bias))
        sinks = self._vector(weights, f"layers.{layer}.attention.sinks")
        self._shared.windlass_layer_attention(
            self._model, layer, self.shape.window_of(layer) or 0, self.shape.attention_softcap or 0.0,
            at(sinks), table_of(self.shape, layer),
        )  # fmt: skip

    def _load_experts(self, weights: ModelWeights, ffn: str, layer: int) -> None:
        for expert in range(self.shape.experts):
            parts = self._feed_forward(weights, f"{ffn}.experts.{expert}")
            self._shared.windlass_layer_expert(self._model, layer, *parts)
        shared = self._feed_forward(weights, f"{ffn}.shared") if self.shape.shared_width else [None] * 4
        gate = self._float32(weights, f"{ffn}.shared_gate.weight") if self.shape.shared_gate else None
        router = self._float32(weights, f"{ffn}.router.weight")
        bias = self._vector(weights, f"{ffn}.router.bias")
        self._shared.windlass_layer_router(self._model, layer, router, at(bias), *shared, gate)

    def _feed_forward(self, weights: ModelWeights, name: str) -> list[int | None]:
        """Return matrix and bias of gate and up, and of down."""
        up = self._joined(weights, f"{name}.gate", f"{name}.up")
        return [*up, *self._joined(weights, f"{name}.down")]

    def _load_ends(self, weights: ModelWeights) -> None:
        head = self._packed([weights.get(weights.head_name)], head=True)
        table: NDArray[Any] | None = None
        if weights.head_name != "embedding.weight":
            table = _table(weights.get("embedding.weight"))
            self._kept.append(table)
        is_half = table is not None and table.dtype == np.uint16
        positions = self._vector(weights, "positions.weight")
        head_bias = self._vector(weights, "head.bias")
        weight, bias = self._norm(weights, "norm")
        self._shared.windlass_ends(
            self._model, head.handle, None if is_half else at(table), at(table) if is_half else None,
            at(positions), at(head_bias), at(weight), at(bias),
        )  # fmt: skip

    def _joined(self, weights: ModelWeights, *names: str) -> tuple[int, int | None]:
        """Return the addresses of a matrix and its bias, joined of those that the model has."""
        there = [name for name in names if f"{name}.weight" in weights.sizes]
        matrix = self._packed([weights.get(f"{name}.weight") for name in there])
        return matrix.handle, at(self._vector(weights, *(f"{name}.bias" for name in there)))

    def _float32(self, weights: ModelWeights, name: str) -> int:
        """Pack a small matrix unrounded: a router's choice is no place to save."""
        matrix = _pack(self._shared, [weights.get(name)], "float32")
        self._kept.append(matrix)
        return int(matrix.handle)

    def _packed(self, parts: list[Float | Grouped], *, head: bool = False) -> Matrix:
        """Join matrices by rows and pack them in this runner's precision; a head has at least 8 bits."""
        matrix = _pack(self._shared, parts, "int8" if head and self.precision == "int4" else self.precision)
        self._kept.append(matrix)
        return matrix

    def _norm(
        self, weights: ModelWeights, name: str
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Return the scale and the bias of a norm."""
        weight = self._vector(weights, f"{name}.weight")
        if weight is not None and self.shape.norm_offset:
            weight += np.float32(1)
        return weight, self._vector(weights, f"{name}.bias")

    def _vector(self, weights: ModelWeights, *names: str) -> NDArray[np.float32] | None:
        """Return small weights as float32, kept alive with the model; None if the family has none."""
        if not names or names[0] not in weights.sizes:
            return None
        found = [weights.get(name) for name in names]
        joined = np.concatenate([np.ascontiguousarray(part.widened()) for part in found])
        self._kept.append(joined)
        return joined

    def _add_deltas(
        self, handle: int, adapter: Adapter, layer: int, place: int, names: tuple[str, ...]
    ) -> None:
        column = 0
        for name in names:
            weight = f"layers.{layer}.{name}.weight"
            if weight in adapter.matrices:
                down, up = adapter.matrices[weight]
                a = Matrix(self._shared, "float32", down, columns=down.shape[1])
                b = Matrix(
                    self._shared,
                    "float32",
                    np.ascontiguousarray(up * np.float32(adapter.scale)),
                    columns=up.shape[1],
                )
                self._kept += [a, b]
                self._shared.windlass_adapter_delta(handle, layer, place, column, a.handle, b.handle)
            column += self._rows_of(name)

    def _rows_of(self, name: str) -> int:
        shape = self.shape
        return {
            "attention.query": shape.attention_width,
            "attention.key": shape.kv_width,
            "ffn.gate": shape.ffn_width if shape.gated else 0,
            "ffn.up": shape.ffn_width,
        }.get(name, 0)

    def _scores(self, rows: int) -> NDArray[np.float32]:
        if rows > len(self._logits_BV):
            self._logits_BV = np.empty((2 * rows, self.shape.vocabulary), np.float32)
        return self._logits_BV[:rows]


def _precision(stored: str, requested: str | None) -> str:
    """Return the precision that stored weights are computed in."""
    if requested is None:
        return stored if stored in PRECISIONS else "float32"
    if stored in BITS and requested in BITS and stored != requested:
        raise BadInput(
            f"these weights are stored as {stored} and cannot become {requested}",
            hint="serve the version that they were made from with that precision, or compress that one",
        )
    return requested


def _pack(shared: ctypes.CDLL, parts: list[Float | Grouped], precision: str) -> Matrix:
    bits = BITS.get(precision)
    if bits is not None:
        found = [part if isinstance(part, Grouped) else quantise(part.widened(), bits) for part in parts]
        q = np.concatenate([part.q for part in found])
        scale = np.concatenate([part.scale for part in found])
        kind = f"int{found[0].bits}"  # weights stored with other bits than requested keep theirs
        return Matrix(shared, kind, q, columns=found[0].width, group=found[0].group, scale=scale)
    values = [part.widened() for part in parts]
    if precision == "bfloat16":
        values = [_halves(part, floats) for part, floats in zip(parts, values, strict=True)]
    joined = np.concatenate(values) if len(values) > 1 else np.ascontiguousarray(values[0])
    return Matrix(shared, precision, joined, columns=joined.shape[1])


def _table(embedding: Float | Grouped) -> NDArray[Any]:
    if isinstance(embedding, Float) and embedding.values.dtype in (np.float32, np.uint16):
        return embedding.values
    return np.ascontiguousarray(embedding.widened())


def _halves(part: Float | Grouped, floats: NDArray[Any]) -> NDArray[Any]:
    """Return bfloat16 bits, rounded to the nearest even."""
    if isinstance(part, Float) and part.values.dtype == np.uint16:
        return part.values
    bits = np.ascontiguousarray(floats).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
