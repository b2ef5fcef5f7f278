"""The loops of native/ngram.cpp, by ctypes. Without the library, `ours` returns None and numpy
computes."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.native_loader import INT, LONG, POINTER, counting_library
from windlass.models.ngram.trie import MAX_ORDER, Level, Logs

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "windlass_ngram_windows": (None, [POINTER, LONG, LONG, INT, INT, INT, ctypes.c_uint32, POINTER]),
    "windlass_ngram_count": (LONG, [POINTER, POINTER, LONG, INT, INT, POINTER]),
    "windlass_ngram_merge": (LONG, [INT, POINTER, POINTER, POINTER, INT, POINTER, POINTER]),
    "windlass_ngram_link": (None, [LONG, LONG, *[POINTER] * 6]),
    "windlass_ngram_score": (None, [POINTER, POINTER, POINTER, LONG, LONG, POINTER, INT]),
    "windlass_ngram_spread": (None, [POINTER, POINTER, LONG, INT, POINTER, INT]),
    "windlass_ngram_vocabulary_new": (POINTER, [POINTER, POINTER, LONG, INT]),
    "windlass_ngram_vocabulary_free": (None, [POINTER]),
    "windlass_ngram_lines": (None, [POINTER, LONG, LONG, POINTER]),
    "windlass_ngram_sentences": (None, [*[POINTER] * 4, LONG, POINTER, POINTER, INT]),
}


class _Tables(ctypes.Structure):
    """What the library reads a model from; see native/ngram.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("order", "vocabulary", "end", "word_bytes")),
        *(
            (name, POINTER * MAX_ORDER)
            for name in ("words", "probabilities", "backoffs", "begins", "suffixes")
        ),
    )


@functools.cache
def ours() -> ctypes.CDLL | None:
    """Return the library with the functions of this family, or None."""
    shared = counting_library()
    for name, (result, arguments) in SIGNATURES.items() if shared else ():
        function = getattr(shared, name)
        function.restype, function.argtypes = result, arguments
    return shared


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at(array: NDArray[Any] | None) -> int | None:
    """Return the address of an array's first number, which must be contiguous."""
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data


class NativeTree:
    """A model as the library reads it. The arrays of `levels` stay where they are, and must stay alive."""

    def __init__(self, shared: ctypes.CDLL, levels: Sequence[Level], end: int) -> None:
        self._shared, self._levels = shared, levels
        self._vocabulary, order = len(levels[0]), len(levels)
        words = levels[-1].words
        self._tables = _Tables(order, self._vocabulary, end, 4 if words is None else words.itemsize)
        for i, level in enumerate(levels):
            for name in ("words", "probabilities", "backoffs", "begins", "suffixes"):
                getattr(self._tables, name)[i] = at(getattr(level, name))

    def score(self, inputs_BT: NDArray[np.int32], targets_BT: NDArray[np.int32], threads: int) -> Logs:
        out_BT = np.empty(targets_BT.shape, np.float32)
        rows, length = targets_BT.shape
        self._shared.windlass_ngram_score(
            ctypes.byref(self._tables), at(inputs_BT), at(targets_BT), rows, length, at(out_BT), threads
        )
        return out_BT

    def spread(self, states_BS: NDArray[np.int32], threads: int) -> Logs:
        rows, size = states_BS.shape
        out_BV = np.empty((rows, self._vocabulary), np.float32)
        self._shared.windlass_ngram_spread(
            ctypes.byref(self._tables), at(states_BS), rows, size, at(out_BV), threads
        )
        return out_BV

    def sentences(
        self, vocabulary: NativeVocabulary, texts: bytes, count: int, threads: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Score `count` texts, which are lines."""
        offsets = np.zeros(count + 1, np.int64)
        if count:
            self._shared.windlass_ngram_lines(texts, len(texts), count, at(offsets))
        logs, words = np.empty(count), np.empty(count, np.int64)
        self._shared.windlass_ngram_sentences(
            ctypes.byref(self._tables),
            vocabulary.handle,
            texts,
            at(offsets),
            count,
            at(logs),
            at(words),
            threads,
        )
        return logs, words


class NativeVocabulary:
    """From words to ids, `unknown` for all others."""

    def __init__(self, shared: ctypes.CDLL, words: Sequence[str], unknown: int) -> None:
        self._shared = shared
        encoded = [word.encode() for word in words]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(word) for word in encoded], out=offsets[1:])
        self.handle = shared.windlass_ngram_vocabulary_new(
            b"".join(encoded), at(offsets), len(encoded), unknown
        )

    def __del__(self) -> None:
        self._shared.windlass_ngram_vocabulary_free(self.handle)
