"""Blocks of quantised weights to float32, in numpy.

Input: the bytes of whole blocks, one line each. Output: their weights, one line for each block. The order of
operations is ggml's, so the numbers are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.gguf.ggml_types import GgmlType
from windlass.models.mmap_tensors import widened
from windlass.spec.errors import BadInput

Bytes = NDArray[Any]
"""Unsigned bytes; the types of shifted ones are beyond numpy's annotations."""
Floats = NDArray[np.float32]

PIECE = 1 << 22
"""Weights that are dequantised at a time, so that the intermediate arrays stay small."""


def check_computable(kind: GgmlType, where: str) -> None:
    """Refuse a type whose weights this package cannot compute."""
    if kind.name not in READERS:
        raise BadInput(
            f"{where} is of type {kind.name}, which is not supported",
            hint=f"supported: {', '.join(READERS)}; take one of the other files of the model",
        )


def dequantise(raw: Bytes, kind: GgmlType) -> Floats:
    """Return the weights of rows of bytes, as rows."""
    blocks = raw.reshape(-1, kind.bytes)
    out = np.empty((len(blocks), kind.block), np.float32)
    step = PIECE // kind.block
    for start in range(0, len(blocks), step):
        out[start : start + step] = READERS[kind.name](blocks[start : start + step])
    return out.reshape(len(raw), -1)


def _half(blocks: Bytes, at: int) -> Floats:
    """Read the float16 at a position of each block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Split bytes: the low halves of all, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Spread 32 bits over the 32 weights of a block, as 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return widened(np.ascontiguousarray(blocks).view("<u2"))


def _f64(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f8").astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - 8) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (q.astype(np.float32) - 16) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return q.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q8_k(blocks: Bytes) -> Floats:
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return blocks[:, 4:260].view(np.int8).astype(np.float32) * scale


def _grouped(q: NDArray[np.number], scale: Floats, minimum: Floats | None = None) -> Floats:
    """Scale the weights of each group of a block, and subtract the group's minimum."""
    groups = q.reshape(len(q), scale.shape[1], -1).astype(np.float32) * scale[:, :, None]
    if minimum is not None:
        groups -= minimum[:, :, None]
    return groups.reshape(len(q), -1)


def _pairs(packed: Bytes) -> Bytes:
    """Split 64 bytes into 256 numbers of two bits: each half of the block has four planes of 32."""
    planes = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (planes & 3).reshape(len(packed), 256)


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    scale = _half(blocks, 80) * (scales & 15)
    return _grouped(_pairs(blocks[:, 16:80]), scale, _half(blocks, 82) * (scales >> 4))


def _q3_k(blocks: Bytes) -> Floats:
    high = np.unpackbits(blocks[:, :32].reshape(-1, 32, 1), axis=2, bitorder="little")  # (n, 32, 8)
    third = high.transpose(0, 2, 1).reshape(len(blocks), 256)
    q = _pairs(blocks[:, 32:96]).astype(np.int8) - ((third ^ 1) << 2).astype(np.int8)
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    top = np.concatenate([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = (low | top << 4).astype(np.float32) - 32
    return _grouped(q, _half(blocks, 108) * scales)


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Read the eight scales and eight minima that Q4_K and Q5_K pack into twelve bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, (rest & 15) | first >> 6 << 4], axis=1)
    minimum = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scale, minimum


def _halves(packed: Bytes) -> Bytes:
    """Split 128 bytes into eight groups of 32: of each 32 bytes first the low halves, then the high ones."""
    chunks = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None]
    return (chunks & 15).reshape(len(packed), 256)


def _q4_k(blocks: Bytes) -> Floats:
    scale, minimum = _six_bits(blocks[:, 4:16])
    return _grouped(_halves(blocks[:, 16:]), _half(blocks, 0) * scale, _half(blocks, 2) * minimum)


def _q5_k(blocks: Bytes) -> Floats:
    scale, minimum = _six_bits(blocks[:, 4:16])
    high = np.unpackbits(blocks[:, 16:48].reshape(-1, 32, 1), axis=2, bitorder="little")
    q = _halves(blocks[:, 48:]) | high.transpose(0, 2, 1).reshape(len(blocks), 256) << 4
    return _grouped(q, _half(blocks, 0) * scale, _half(blocks, 2) * minimum)


def _q6_k(blocks: Bytes) -> Floats:
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None]
    low = (nibbles & 15).reshape(len(blocks), 256)
    high = _pairs(blocks[:, 128:192])
    q = (low | high << 4).astype(np.int8) - 32
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _grouped(q, scale)


READERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "F64": _f64, "Q8_0": _q8_0,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k,
}  # fmt: skip
"""The types that can be computed."""
