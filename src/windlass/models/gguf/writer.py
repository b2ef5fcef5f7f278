"""Writes GGUF files of version 3, little-endian, as a stream.

Input: metadata, and tensors whose bytes are made while they are written. Output: a file that llama.cpp and
`reader` read; the layout is in docs/formats/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from windlass.models.gguf.ggml_types import GgmlType
from windlass.models.gguf.reader import ALIGNMENT, ARRAY, BOOL, MAGIC, SCALARS, STRING

VERSION = 3
UINT32, INT32, FLOAT32, UINT64 = 4, 5, 6, 10
_CODES = {np.dtype(name): code for code, name in SCALARS.items() if code != BOOL}


@dataclass(frozen=True)
class WrittenTensor:
    """One tensor of a file that is written."""

    name: str
    shape: tuple[int, ...]
    """Rows first."""
    kind: GgmlType
    pieces: Callable[[], Iterator[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(int(np.prod(self.shape, dtype=np.int64)))


def write_gguf(file: IO[bytes], metadata: Mapping[str, Any], tensors: Sequence[WrittenTensor]) -> int:
    """Write a whole file and return its length.

    Values are texts, flags, numbers (int as uint32 or uint64, float as float32), lists of texts, and numpy
    vectors, which keep their type.
    """
    out = _Counted(file)
    out.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out.write(_string(key) + _value(value))
    start = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        out.write(_string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.write(struct.pack("<IQ", tensor.kind.code, start))
        start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    for tensor in tensors:
        out.pad()
        before = out.count
        for piece in tensor.pieces():
            out.write(piece)
        assert out.count - before == tensor.nbytes, f"{tensor.name}: not as many bytes as promised"
    out.pad()
    return out.count


class _Counted:
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.count = file, 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self.count += len(data)

    def pad(self) -> None:
        self.write(bytes(-self.count % ALIGNMENT))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", BOOL, value)
        case int():
            code = UINT32 if 0 <= value < 1 << 32 else UINT64
            return struct.pack("<II" if code == UINT32 else "<IQ", code, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case np.ndarray():
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            return struct.pack("<IIQ", ARRAY, _CODES[little.dtype], little.size) + little.tobytes()
        case _:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_string(text) for text in value)
