"""The calls of native/word2vec.cpp; its structures as ctypes sees them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numpy.typing import NDArray

from windlass.models.native_loader import FLOAT, INT, LONG, POINTER, counting_library

KEY = ctypes.c_uint64


class DrawTables(ctypes.Structure):
    """The tables that `draw` samples from."""

    _fields_ = (
        *((name, POINTER) for name in ("keep", "threshold", "alias")),
        *((name, INT) for name in ("vocabulary", "end_token", "distance", "negatives")),
    )


class NativeVectors(ctypes.Structure):
    """The two matrices that are trained."""

    _fields_ = (("inputs", POINTER), ("outputs", POINTER), ("stride", INT))


class Sums(ctypes.Structure):
    """Counts and losses."""

    _fields_ = (("loss", ctypes.c_double), *((name, LONG) for name in ("loss_pairs", "pairs", "groups")))


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "windlass_word2vec_draw": (LONG, [POINTER, KEY, POINTER, LONG, KEY, *[POINTER] * 3]),
    "windlass_word2vec_learn": (None, [*[POINTER] * 4, LONG, INT, FLOAT, POINTER]),
    "windlass_word2vec_run": (
        None,
        [POINTER, POINTER, KEY, POINTER, LONG, KEY, LONG, POINTER, INT, POINTER],
    ),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the native library, or None if it is missing or cannot run here."""
    shared = counting_library()
    for name, (result, arguments) in SIGNATURES.items() if shared is not None else ():
        function = getattr(shared, name)
        function.restype, function.argtypes = result, arguments
    return shared


def at(array: NDArray[Any]) -> int:
    """Return the address of an array's first number, which must be contiguous."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
