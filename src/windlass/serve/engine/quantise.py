"""Quantises matrices to small integers, and defines exactly what they multiply to.

Input: a float32 matrix, and optionally the second moments of its inputs, measured on sample text.
Output: a Grouped. Each group of each row gets the scale with the smallest error among a few clipping points,
since one large weight should not make all its neighbours coarse.

With second moments the columns after each column compensate, on average, the error that its rounding adds to
the outputs (Frantar et al. 2022, GPTQ, arXiv:2210.17323).

Legend: N rows, K columns in whole groups, G groups of a row, C columns of a group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windlass.models.quantised import LANES, LIMITS, NIBBLE, Grouped, grouped

Floats = NDArray[np.float32]

MAX_GROUP = 128
NIBBLE_GROUP = 32
CLIPPINGS = np.linspace(1.0, 0.6, 9, dtype=np.float32)
"""Clipping points to try, as shares of the largest weight of a group."""
DAMPING = 0.01
"""Share of the mean second moment that is added to each, so that columns without inputs do no harm."""
ROWS_AT_ONCE = 256
"""Bounds the memory of the search, which holds a few copies of that many rows."""
MAX_ACTIVATION = 127


def group_of(columns: int, bits: int) -> int:
    """Return how many columns share a scale: the largest multiple of 32 that divides the (filled) row."""
    if bits == NIBBLE:
        return NIBBLE_GROUP
    padded = columns + -columns % LANES
    return max(size for size in range(LANES, MAX_GROUP + 1, LANES) if padded % size == 0)


def quantise(values: Floats, bits: int, second_moments: NDArray[np.float64] | None = None) -> Grouped:
    """Quantise one matrix; `second_moments` is the mean of x xᵀ over its inputs, (columns, columns)."""
    width, group = values.shape[1], group_of(values.shape[1], bits)
    fill = -width % group
    values_NK = np.pad(values.astype(np.float32), ((0, 0), (0, fill)))
    if second_moments is None:
        parts_NGC = values_NK.reshape(len(values), -1, group)
        scale_NG = best_scales(parts_NGC, bits)
        integers_NK = _rounded(parts_NGC, scale_NG[:, :, None], bits).reshape(values_NK.shape)
    else:
        moments_KK = np.pad(second_moments, ((0, fill), (0, fill)))
        integers_NK, scale_NG = _with_feedback(values_NK, moments_KK, bits, group)
    return grouped(integers_NK, scale_NG, bits, width)


def best_scales(parts_NGC: Floats, bits: int, importance_C: Floats | None = None) -> Floats:
    """Return the scale of each group with the least squared error, weighted by how large inputs are."""
    weight_C = np.ones(parts_NGC.shape[2], np.float32) if importance_C is None else importance_C
    chunks = range(0, len(parts_NGC), ROWS_AT_ONCE)
    return np.concatenate([_search(parts_NGC[at : at + ROWS_AT_ONCE], bits, weight_C) for at in chunks])


def _search(parts_NGC: Floats, bits: int, weight_C: Floats) -> Floats:
    largest_NG = np.abs(parts_NGC).max(axis=2)
    best_NG: Floats = largest_NG / LIMITS[bits][1]
    min_NG = np.full(largest_NG.shape, np.inf, np.float32)
    for end in {
        abs(limit): limit for limit in LIMITS[bits]
    }.values():  # which end the largest weight is put at
        for clipping in CLIPPINGS:
            scale_NG = _refitted(parts_NGC, largest_NG * (clipping / end), bits, weight_C)
            rest_NGC = parts_NGC - _rounded(parts_NGC, scale_NG[:, :, None], bits) * scale_NG[:, :, None]
            error_NG = np.square(rest_NGC) @ weight_C
            better = error_NG < min_NG
            best_NG, min_NG = np.where(better, scale_NG, best_NG), np.where(better, error_NG, min_NG)
    return best_NG


def _refitted(parts_NGC: Floats, scale_NG: Floats, bits: int, weight_C: Floats) -> Floats:
    """Return the scale that fits best to the integers that `scale_NG` leads to (least squares)."""
    integers_NGC = _rounded(parts_NGC, scale_NG[:, :, None], bits).astype(np.float32)
    over_NG, under_NG = (parts_NGC * integers_NGC) @ weight_C, np.square(integers_NGC) @ weight_C
    return np.where(under_NG > 0, over_NG / np.where(under_NG > 0, under_NG, 1), scale_NG)


def _rounded(values: Floats, scale: Floats, bits: int) -> NDArray[np.int8]:
    divisor = np.where(scale == 0, np.float32(1), scale)
    return np.clip(np.rint(values / divisor), *LIMITS[bits]).astype(np.int8)


def _with_feedback(
    values_NK: Floats, moments_KK: NDArray[np.float64], bits: int, group: int
) -> tuple[NDArray[np.int8], Floats]:
    """Round column after column; the error of each is compensated by the columns after it."""
    left_NK, spread_KK = values_NK.copy(), _spread(moments_KK)
    importance_K = (np.diag(moments_KK) + DAMPING * np.diag(moments_KK).mean()).astype(np.float32)
    integers_NK = np.zeros(values_NK.shape, np.int8)
    scales = []
    for start in range(0, values_NK.shape[1], group):
        here = slice(start, start + group)
        scale_N = best_scales(left_NK[:, None, here], bits, importance_K[here])[:, 0]
        lost_NC = np.zeros((len(values_NK), group), np.float32)
        for k in range(start, start + group):
            integers_NK[:, k] = _rounded(left_NK[:, k], scale_N, bits)
            lost_N = (left_NK[:, k] - integers_NK[:, k] * scale_N) / spread_KK[k, k]
            left_NK[:, k : here.stop] -= lost_N[:, None] * spread_KK[k, k : here.stop]
            lost_NC[:, k - start] = lost_N
        left_NK[:, here.stop :] -= lost_NC @ spread_KK[here, here.stop :]
        scales.append(scale_N)
    return integers_NK, np.stack(scales, axis=1)


def _spread(moments_KK: NDArray[np.float64]) -> Floats:
    """Return the upper Cholesky factor of the inverse: row k spreads the error of column k."""
    damped_KK = moments_KK + np.eye(len(moments_KK)) * (DAMPING * np.diag(moments_KK).mean() + 1e-12)
    return np.linalg.cholesky(np.linalg.inv(damped_KK)).T.astype(np.float32)


def matmul_reference(x_MK: Floats, matrix: Grouped) -> Floats:
    """Return x times the transposed matrix, (M, N), as the native kernel computes it.

    Every row of x becomes integers of at most 127 with one scale; products are summed in integers group by
    group, each sum is multiplied by the scale of its group and added (fused, groups in order) to a float32
    that is multiplied by the scale of the row at last.
    """
    whole_MK = np.pad(x_MK, ((0, 0), (0, matrix.padded - x_MK.shape[1])))
    integers_MK, scale_M = quantised_rows(whole_MK)
    weights_NK = matrix.integers().astype(np.int32)
    total_MN = np.zeros((len(x_MK), matrix.rows), np.float32)
    for g in range(matrix.scale.shape[1]):
        here = slice(g * matrix.group, (g + 1) * matrix.group)
        sums_MN = integers_MK[:, here].astype(np.int32) @ weights_NK[:, here].T
        # A product of two float32 is exact in float64, so this rounds once, as a fused operation does.
        total_MN = (sums_MN * matrix.scale[:, g].astype(np.float64) + total_MN).astype(np.float32)
    return total_MN * scale_M[:, None]


def quantised_rows(x_MK: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return integers in [-127, 127], ties to even, and the scale of each row; a row of zeros has scale 0."""
    largest_M = np.abs(x_MK).max(axis=1).astype(np.float32)
    inverse_M = np.divide(
        np.float32(MAX_ACTIVATION), largest_M, where=largest_M > 0, out=np.zeros_like(largest_M)
    )
    integers_MK = np.rint(x_MK * inverse_M[:, None]).astype(np.int8)
    return integers_MK, largest_M / np.float32(MAX_ACTIVATION)
