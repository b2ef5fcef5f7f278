"""Weights to the blocks of Q8_0, Q4_0 and Q4_K, and to plain numbers, in numpy.

Input: rows of float32. Output: the bytes of each row. Q8_0 and Q4_0 round exactly as ggml's reference does;
Q4_K fits scale and minimum of every 32 weights by weighted least squares, which is what the format leaves to
the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.gguf.ggml_types import GgmlType
from windlass.models.mmap_tensors import narrowed

Floats = NDArray[np.float32]
Bytes = NDArray[Any]

PIECE = 1 << 19
"""Weights that are quantised at a time; the search of Q4_K keeps a dozen arrays of this size."""
CANDIDATES = np.linspace(-1.0, 1.0, 11, dtype=np.float32)
"""Steps around the widest grid (15 steps) that the search of Q4_K tries."""
LEVELS = np.float32(15)


def quantise(rows: Floats, kind: GgmlType) -> Bytes:
    """Return the bytes of rows, one line each."""
    blocks = np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, kind.block)
    out = np.empty((len(blocks), kind.bytes), np.uint8)
    step = max(1, PIECE // kind.block)
    for start in range(0, len(blocks), step):
        out[start : start + step] = WRITERS[kind.name](blocks[start : start + step])
    return out.reshape(len(rows), -1)


def _half(values: Floats) -> Bytes:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _inverse(values: Floats) -> Floats:
    """Return 1 / value, and 0 for 0."""
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return np.concatenate([_half(scale), q.view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> Bytes:
    """The weight with the largest absolute value becomes -8 exactly."""
    at = np.abs(blocks).argmax(axis=1)
    scale = np.take_along_axis(blocks, at[:, None], axis=1) / np.float32(-8)
    q = np.trunc(blocks * _inverse(scale) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return np.concatenate([_half(scale), q[:, :16] | q[:, 16:] << 4], axis=1)


def _q4_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 32)
    scale, low_end = (part.reshape(-1, 8) for part in _fitted(groups))
    step = (scale.max(axis=1, keepdims=True) / np.float32(63)).astype("<f2")
    low_step = (low_end.max(axis=1, keepdims=True) / np.float32(63)).astype("<f2")
    six = np.rint(scale * _inverse(step.astype(np.float32))).clip(0, 63).astype(np.uint8)
    low_six = np.rint(low_end * _inverse(low_step.astype(np.float32))).clip(0, 63).astype(np.uint8)
    real = (step.astype(np.float32) * six).reshape(-1, 1)
    offset = (low_step.astype(np.float32) * low_six).reshape(-1, 1)
    q = np.rint((groups + offset) * _inverse(real)).clip(0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    nibbles = (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate(
        [step.view(np.uint8), low_step.view(np.uint8), _packed(six, low_six), nibbles], axis=1
    )


def _packed(six: Bytes, low_six: Bytes) -> Bytes:
    """Pack eight scales and eight minima of six bits into twelve bytes."""
    first = six[:, :4] | six[:, 4:] >> 4 << 6
    second = low_six[:, :4] | low_six[:, 4:] >> 4 << 6
    return np.concatenate([first, second, six[:, 4:] & 15 | (low_six[:, 4:] & 15) << 4], axis=1)


def _fitted(groups: Floats) -> tuple[Floats, Floats]:
    """Return scale and minimum (as a positive number) of each group: weight = scale * q - minimum.

    Every candidate grid rounds the weights; weighted least squares then gives the scale and minimum that fit
    these levels best. Large weights count more, because their errors change outputs more.
    """
    weight = np.abs(groups) + np.sqrt(np.square(groups).mean(axis=1, keepdims=True))
    bottom = np.minimum(groups.min(axis=1, keepdims=True), 0)
    span = groups.max(axis=1, keepdims=True) - bottom
    scale, low_end = span / LEVELS, -bottom
    error = _error(groups, weight, scale, low_end)
    for candidate in CANDIDATES:
        q = np.rint((groups - bottom) * (_inverse(span) * (LEVELS + candidate))).clip(0, LEVELS)
        tried = _fit_levels(groups, weight, q)
        found = _error(groups, weight, *tried)
        better = found < error
        scale, low_end = np.where(better, tried[0], scale), np.where(better, tried[1], low_end)
        error = np.where(better, found, error)
    return scale, low_end


def _fit_levels(groups: Floats, weight: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Fit scale and minimum to given levels; a minimum above zero cannot be stored and becomes zero."""
    total = weight.sum(axis=1, keepdims=True)
    levels, squares = (weight * q).sum(axis=1, keepdims=True), (weight * q * q).sum(axis=1, keepdims=True)
    values = (weight * groups).sum(axis=1, keepdims=True)
    products = (weight * groups * q).sum(axis=1, keepdims=True)
    determinant = total * squares - levels * levels
    scale = (total * products - values * levels) * _inverse(determinant)
    low_end = (levels * products - squares * values) * _inverse(determinant)
    plain = products * _inverse(squares)
    negative = low_end < 0
    return np.maximum(np.where(negative, plain, scale), 0), np.maximum(low_end, 0)


def _error(groups: Floats, weight: Floats, scale: Floats, low_end: Floats) -> Floats:
    q = np.rint((groups + low_end) * _inverse(scale)).clip(0, LEVELS)
    return (weight * np.square(scale * q - low_end - groups)).sum(axis=1, keepdims=True)


def _bf16(blocks: Floats) -> Bytes:
    return narrowed(blocks).astype("<u2").view(np.uint8)


WRITERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": lambda blocks: np.ascontiguousarray(blocks, dtype="<f4").view(np.uint8),
    "F16": lambda blocks: blocks.astype("<f2").view(np.uint8),
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
}
"""The types that can be written."""
