"""The number formats of GGUF files: how many weights a block holds, and in how many bytes.

The layouts are those of ggml's `ggml-common.h` and of the GGUF specification. The types that this package
computes are in `dequantise`; the others are listed so that a refusal can name them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """One number format: its name and code, and its block."""

    name: str
    code: int
    block: int
    """Weights in one block; a row is a whole number of blocks."""
    bytes: int
    """Bytes of one block."""

    def nbytes(self, weights: int) -> int:
        """Return the bytes of a number of weights that fills whole blocks."""
        return weights // self.block * self.bytes


_LISTED = (
    ("F32", 0, 1, 4), ("F16", 1, 1, 2), ("BF16", 30, 1, 2), ("F64", 28, 1, 8),
    ("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22), ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34), ("Q8_1", 9, 32, 36),
    ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210), ("Q8_K", 15, 256, 292),
    ("IQ2_XXS", 16, 256, 66), ("IQ2_XS", 17, 256, 74), ("IQ3_XXS", 18, 256, 98), ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18), ("IQ3_S", 21, 256, 110), ("IQ2_S", 22, 256, 82), ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8),
    ("IQ1_M", 29, 256, 56), ("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66), ("MXFP4", 39, 32, 17),
    ("NVFP4", 40, 64, 36),
)  # fmt: skip

TYPES = {name: GgmlType(name, code, block, size) for name, code, block, size in _LISTED}
"""By name."""
BY_CODE = {kind.code: kind for kind in TYPES.values()}
