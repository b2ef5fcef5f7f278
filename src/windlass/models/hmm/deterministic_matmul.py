"""Rows times a matrix, so that no row of the result depends on the others, not in a bit.

A BLAS product adds up in an order that depends on the number of rows. Here it is the order of the matrix's
rows, each product rounded before it is added; the native library and numpy do the same, and a test compares
their bits.

B rows, K columns of each, N columns of the matrix.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
from numpy.typing import NDArray

from windlass.models.native_loader import INT, POINTER, counting_library

Floats = NDArray[np.float32]


def product(rows_BK: Floats, matrix_KN: Floats) -> Floats:
    """Return rows times matrix."""
    shared = _library()
    if shared is None:
        return product_by_numpy(rows_BK, matrix_KN)
    rows_BK, matrix_KN = np.ascontiguousarray(rows_BK), np.ascontiguousarray(matrix_KN)
    result_BN = np.empty((len(rows_BK), matrix_KN.shape[1]), np.float32)
    shared.windlass_hmm_product(
        rows_BK.ctypes.data, matrix_KN.ctypes.data, result_BN.ctypes.data, *rows_BK.shape, result_BN.shape[1]
    )
    return result_BN


def product_by_numpy(rows_BK: Floats, matrix_KN: Floats) -> Floats:
    """Return rows times matrix where there is no native library."""
    result_BN = np.zeros((len(rows_BK), matrix_KN.shape[1]), np.float32)
    for column_B, row_N in zip(rows_BK.T, matrix_KN, strict=True):
        result_BN += column_B[:, None] * row_N
    return result_BN


@functools.cache
def _library() -> ctypes.CDLL | None:
    shared = counting_library()
    if shared is None or not hasattr(shared, "windlass_hmm_product"):
        return None
    shared.windlass_hmm_product.argtypes = [POINTER, POINTER, POINTER, INT, INT, INT]
    shared.windlass_hmm_product.restype = None
    return shared
