"""How GPTQ and AWQ pack integers into 32-bit words, and what a weight is.

GPTQ   qweight (inputs / n, outputs): n inputs in one word, low bits first; n = 32 / bits
       qzeros  (groups, outputs / n): zero points, less one in the format "gptq"
       weight[o, i] = scales[g, o] * (q[i, o] - zero[g, o]), g = g_idx[i]
AWQ    qweight (inputs, outputs / 8), qzeros (groups, outputs / 8): eight outputs in one word, in the
       order 0 2 4 6 1 3 5 7; g = i // group size
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds each of eight neighbours."""
Words = NDArray[np.int32]


def gptq_weight(
    qweight: Words, qzeros: Words, scales: NDArray[Any], g_idx: Words, *, bits: int, plus_one: bool
) -> NDArray[np.float32]:
    """Return a matrix, rows are outputs."""
    q = _spread(qweight, bits).transpose(0, 2, 1).reshape(-1, qweight.shape[1])  # (inputs, outputs)
    zeros = _spread(qzeros, bits).reshape(len(qzeros), -1) + int(plus_one)
    zeros &= (1 << bits) - 1
    group = np.asarray(g_idx, np.int64)
    shifted = q.astype(np.float32) - zeros[group].astype(np.float32)
    return np.ascontiguousarray((shifted * scales.astype(np.float32)[group]).T)


def awq_weight(qweight: Words, qzeros: Words, scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return a matrix, rows are outputs."""
    order = list(AWQ_ORDER)
    q = _spread(qweight, 4)[:, :, order].reshape(len(qweight), -1)  # (inputs, outputs)
    zeros = _spread(qzeros, 4)[:, :, order].reshape(len(qzeros), -1)
    group = np.arange(len(q)) // (len(q) // len(zeros))
    shifted = q.astype(np.float32) - zeros[group].astype(np.float32)
    return np.ascontiguousarray((shifted * scales.astype(np.float32)[group]).T)


def _spread(words: Words, bits: int) -> NDArray[np.int32]:
    """Unpack each word into its numbers, low bits first, along a new last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words.view(np.uint32)[..., None] >> shifts & ((1 << bits) - 1)).astype(np.int32)
