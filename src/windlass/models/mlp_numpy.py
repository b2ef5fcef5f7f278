"""The context MLP for serving and evaluation: numpy and the native library, without torch.

The state of a sequence is its last `window` tokens, oldest first, and -1 where there was none: all that the
model can see. A row of `scores` has the same bits whatever other rows are computed: the native library
computes every number from its own row alone, and without the library, rows are multiplied one at a time.

Legend: B sequences, T tokens, W window, D width, F inner width, V vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.native_loader import FLOAT, INT, LONG, POINTER, counting_library
from windlass.models.weights import ModelWeights, load_weights
from windlass.spec.errors import BadInput
from windlass.spec.shape import HmmShape, MlpShape, NgramShape

Floats = NDArray[np.float32]
Ids = NDArray[np.integer[Any]]
States = NDArray[Any]

BLOCK_TOKENS = 1024
"""Of `logprobs` at once, so that the scores of a whole text need no memory."""


def load(directory: Path, threads: int | None = None) -> MlpScores:
    """Load a model, checked byte by byte where a manifest is; quantised weights become float32."""
    weights = load_weights(directory)
    if not isinstance(weights.shape, MlpShape):
        raise BadInput(f"{directory}: a {weights.shape.family} model, not an mlp")
    return MlpScores(weights.shape, weights, threads)


class _Model(ctypes.Structure):
    """The model as windlass_mlp_scores reads it."""

    _fields_ = (
        *((name, POINTER) for name in ("embedding", "mix", "norm", "layers")),
        *((name, INT) for name in ("vocabulary", "width", "ffn_width", "window", "depth")),
        ("epsilon", FLOAT),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the native library, or None if it is missing or cannot run here."""
    shared = counting_library()
    if shared is not None:
        shared.windlass_mlp_scores.restype = None
        shared.windlass_mlp_scores.argtypes = [POINTER, POINTER, LONG, INT, POINTER]
    return shared


class MlpScores:
    """A `Statistical` (see `recurrent_state`)."""

    state_dtype: np.dtype[Any] = np.dtype(np.int32)

    def __init__(self, shape: MlpShape, weights: ModelWeights, threads: int | None = None) -> None:
        self.shape: NgramShape | HmmShape | MlpShape = shape
        self._sizes, self.state_size = shape, shape.window
        self.threads = threads or os.cpu_count() or 1
        self._embedding_VD, self._mix, self._norm_D = (
            _floats(weights, f"{name}.weight") for name in ("embedding", "mix", "norm")
        )
        self._layers = [
            tuple(
                _floats(weights, f"layers.{n}.{name}.weight") for name in ("ffn_norm", "ffn.up", "ffn.down")
            )
            for n in range(shape.layers)
        ]

    def first(self) -> States:
        return np.full(self.state_size, -1, self.state_dtype)

    def read(self, state_S: States, tokens_T: Ids) -> States:
        if not len(tokens_T):
            return np.empty((0, self.state_size), self.state_dtype)
        seen = np.concatenate([state_S, tokens_T.astype(self.state_dtype)])
        return np.lib.stride_tricks.sliding_window_view(seen, self.state_size)[1:].copy()

    def step(self, states_BS: States, tokens_B: Ids) -> States:
        return np.concatenate([states_BS[:, 1:], tokens_B.astype(self.state_dtype)[:, None]], axis=1)

    def scores(self, states_BS: States) -> Floats:
        shared = library()
        states_BS = np.ascontiguousarray(states_BS, self.state_dtype)
        if shared is None:
            return self.scores_numpy(states_BS)
        scores_BV = np.empty((len(states_BS), self.shape.vocabulary), np.float32)
        shared.windlass_mlp_scores(
            ctypes.byref(self._native),
            states_BS.ctypes.data,
            len(states_BS),
            self.threads,
            scores_BV.ctypes.data,
        )
        return scores_BV

    def scores_numpy(self, states_BS: States) -> Floats:
        """The same as the native library gives, up to rounding; rows one at a time, so that none matters
        to another."""
        rows = [self._logits(states_BS[n : n + 1]) for n in range(len(states_BS))]
        empty = np.empty((0, self.shape.vocabulary), np.float32)
        return np.concatenate([empty, *(row - _log_sum(row)[:, None] for row in rows)])

    def vectors(self, states_BS: States) -> Floats:
        """Return the vector of the last token of each state; their mean is that of the words of a text."""
        return np.asarray(self._embedding_VD[states_BS[:, -1]], np.float32)

    def logprobs(self, inputs_BT: Ids, targets_BT: Ids) -> NDArray[np.float64]:
        """Many rows at once, in products of whole blocks: quick, and equal to `scores` up to rounding."""
        states = np.concatenate([self.read(self.first(), row) for row in inputs_BT])
        targets = targets_BT.reshape(-1)
        found = np.empty(len(targets), np.float64)
        for start in range(0, len(targets), BLOCK_TOKENS):
            block = slice(start, start + BLOCK_TOKENS)
            logits_NV = self._logits(states[block])
            chosen_N = np.take_along_axis(logits_NV, targets[block, None].astype(np.int64), axis=1)[:, 0]
            found[block] = chosen_N - _log_sum(logits_NV)
        return found.reshape(targets_BT.shape)

    def _logits(self, states_BS: States) -> Floats:
        e_BWD = self._embedding_VD[states_BS]
        e_BWD[states_BS < 0] = 0.0
        x_BD = e_BWD.reshape(len(states_BS), -1) @ self._mix.T
        for norm, up, down in self._layers:
            h_BF = _gelu(self._normed(x_BD, norm) @ up.T)
            x_BD = x_BD + h_BF @ down.T
        return np.asarray(self._normed(x_BD, self._norm_D) @ self._embedding_VD.T, np.float32)

    def _normed(self, x_BD: Floats, weight_D: Floats) -> Floats:
        mean_B1 = np.square(x_BD).mean(axis=-1, keepdims=True) + np.float32(self._sizes.norm_epsilon)
        return np.asarray(weight_D * (x_BD / np.sqrt(mean_B1)), np.float32)

    @functools.cached_property
    def _native(self) -> _Model:
        addresses = [array.ctypes.data for layer in self._layers for array in layer]
        self._addresses = (POINTER * len(addresses))(*addresses)
        shape = self._sizes
        ends = (array.ctypes.data for array in (self._embedding_VD, self._mix, self._norm_D))
        layers = ctypes.cast(self._addresses, POINTER)
        sizes = (shape.vocabulary, shape.width, shape.ffn_width, shape.window, shape.layers)
        return _Model(*ends, layers, *sizes, shape.norm_epsilon)


def _floats(weights: ModelWeights, name: str) -> Floats:
    return np.ascontiguousarray(weights.get(name).widened(), np.float32)


def _gelu(x: Floats) -> Floats:
    """GELU in its tanh form."""
    inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)), np.float32)


def _log_sum(logits_BV: Floats) -> Floats:
    largest_B = logits_BV.max(axis=1)
    sums_B = np.exp(logits_BV - largest_B[:, None]).sum(axis=1, dtype=np.float64)
    return np.asarray(largest_B + np.log(sums_B), np.float32)
