"""Each quantisation beside its definition, written out weight by weight."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from windlass.models.gguf.dequantise import READERS, check_computable, dequantise
from windlass.models.gguf.ggml_types import TYPES
from windlass.spec.errors import BadInput

f32 = np.float32
SCALES_AT = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
             "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # fmt: skip
"""Where a block holds float16 numbers."""


def half(block: bytes, at: int) -> np.float32:
    return f32(struct.unpack_from("<e", block, at)[0])


def nibble(data: bytes, j: int) -> int:
    return data[j] & 15 if j < 16 else data[j - 16] >> 4


def fifth(data: bytes, j: int) -> int:
    return (int.from_bytes(data, "little") >> j & 1) << 4


def six_bits(packed: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def q2_k(block: bytes, j: int) -> np.float32:
    scale = block[j // 16]
    q = block[16 + j // 128 * 32 + j % 32] >> (j % 128 // 32 * 2) & 3
    return half(block, 80) * f32(scale & 15) * f32(q) - half(block, 82) * f32(scale >> 4)


def q3_k(block: bytes, j: int) -> np.float32:
    packed, group = block[96:108], j // 16
    low = packed[group] & 15 if group < 8 else packed[group - 8] >> 4
    scale = (low | (packed[8 + group % 4] >> (2 * (group // 4)) & 3) << 4) - 32
    q = block[32 + j // 128 * 32 + j % 32] >> (j % 128 // 32 * 2) & 3
    high = block[j % 32] >> (j // 32) & 1
    return half(block, 108) * f32(scale) * f32(q - (0 if high else 4))


def q4_k(block: bytes, j: int) -> np.float32:
    scale, low_end = six_bits(block[4:16], j // 32)
    q = block[16 + j // 64 * 32 + j % 32] >> (j // 32 % 2 * 4) & 15
    return half(block, 0) * f32(scale) * f32(q) - half(block, 2) * f32(low_end)


def q5_k(block: bytes, j: int) -> np.float32:
    scale, low_end = six_bits(block[4:16], j // 32)
    q = (
        block[48 + j // 64 * 32 + j % 32] >> (j // 32 % 2 * 4) & 15
        | (block[16 + j % 32] >> (j // 32) & 1) << 4
    )
    return half(block, 0) * f32(scale) * f32(q) - half(block, 2) * f32(low_end)


def q6_k(block: bytes, j: int) -> np.float32:
    part, inside = divmod(j, 128)
    low = block[part * 64 + inside % 64] >> (inside // 64 * 4) & 15
    high = block[128 + part * 32 + inside % 32] >> (inside // 32 * 2) & 3
    scale = struct.unpack_from("b", block, 192 + j // 16)[0]
    return half(block, 208) * f32(scale) * f32((low | high << 4) - 32)


DEFINITIONS: dict[str, Callable[[bytes, int], np.float32]] = {
    "Q4_0": lambda b, j: half(b, 0) * f32(nibble(b[2:], j) - 8),
    "Q4_1": lambda b, j: half(b, 0) * f32(nibble(b[4:], j)) + half(b, 2),
    "Q5_0": lambda b, j: half(b, 0) * f32((nibble(b[6:], j) | fifth(b[2:6], j)) - 16),
    "Q5_1": lambda b, j: half(b, 0) * f32(nibble(b[8:], j) | fifth(b[4:8], j)) + half(b, 2),
    "Q8_0": lambda b, j: half(b, 0) * f32(struct.unpack_from("b", b, 2 + j)[0]),
    "Q8_K": lambda b, j: f32(struct.unpack_from("<f", b)[0]) * f32(struct.unpack_from("b", b, 4 + j)[0]),
    "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_weight_is_what_its_definition_says(name: str) -> None:
    kind, rng = TYPES[name], np.random.default_rng(3)
    raw = rng.integers(0, 256, (3, 2 * kind.bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, kind.bytes)
    for at in SCALES_AT.get(name, ()):
        blocks[:, at : at + 2] = rng.normal(0, 1, (6, 1)).astype("<f2").view(np.uint8)
    if name == "Q8_K":
        blocks[:, :4] = rng.normal(0, 1, (6, 1)).astype("<f4").view(np.uint8)
    got = dequantise(raw, kind)
    want = [[DEFINITIONS[name](bytes(block), j) for j in range(kind.block)] for block in blocks]
    assert got.shape == (3, 2 * kind.block)
    np.testing.assert_array_equal(got, np.array(want, f32).reshape(got.shape))


def test_plain_numbers_are_widened_exactly() -> None:
    values = np.array([[1.5, -2.25, 3e-5, 0.0]], f32)
    for name, kind in (("F32", "<f4"), ("F16", "<f2"), ("F64", "<f8")):
        raw = values.astype(kind).view(np.uint8)
        np.testing.assert_array_equal(dequantise(raw, TYPES[name]), values.astype(kind).astype(f32))
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    np.testing.assert_array_equal(
        dequantise(bits.view(np.uint8), TYPES["BF16"]), (bits.astype(np.uint32) << 16).view(f32)
    )


@pytest.mark.parametrize("name", ["IQ4_XS", "TQ1_0", "MXFP4"])
def test_a_type_that_is_not_computed_is_refused_by_name(name: str) -> None:
    assert name not in READERS
    with pytest.raises(BadInput, match=f"{name}.*\n.*Q4_K"):
        check_computable(TYPES[name], "file: tensor 'x'")
