"""Matrices of small integers: rows of weights in groups along k, each group with a scale of its own.

    weight[n, k]  =  integer[n, k] * scale[n, k // group]

A stored matrix NAME is two tensors, NAME.q and NAME.scale. The format is docs/formats/quantised.md.

Legend: N rows (what the matrix gives), K columns (what it takes, filled up with zeros to whole groups).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.spec.errors import BadInput

METHOD = "windlass"
FORMAT = 1
FIELD = "quantization_config"
BITS = {"int8": 8, "int4": 4}
LIMITS = {8: (-64, 64), 4: (-8, 7)}
"""The smallest and the largest integer by bits. Two products of an unsigned 8-bit activation and a weight of
at most 64 fit into 16 bits, so the pairs that x86 adds before widening (vpmaddubsw) cannot overflow."""
LANES = 32
"""Groups are multiples of it: the bytes in a register of AVX2."""
NIBBLE = 4
OFFSET = 8
"""A stored nibble is the integer plus this."""


@dataclass(frozen=True)
class Grouped:
    """One matrix. Columns from `width` on are there to fill the last group, and are zero."""

    bits: int
    q: NDArray[Any]
    """8 bits: int8 (N, K). 4 bits: uint8 (N, K/2), the low nibble is the even k, 8 stands for 0."""
    scale: NDArray[np.float32]
    """(N, K/group)"""
    group: int
    width: int

    @property
    def rows(self) -> int:
        return int(self.q.shape[0])

    @property
    def padded(self) -> int:
        """K, whole groups."""
        return int(self.scale.shape[1]) * self.group

    @property
    def nbytes(self) -> int:
        return int(self.q.nbytes + self.scale.nbytes)

    def integers(self) -> NDArray[np.int8]:
        """Return the integers, (N, K)."""
        if self.bits != NIBBLE:
            return self.q
        spread = np.empty((self.rows, self.padded), np.int8)
        spread[:, 0::2] = (self.q & 0x0F).astype(np.int8) - OFFSET
        spread[:, 1::2] = (self.q >> NIBBLE).astype(np.int8) - OFFSET
        return spread

    def widened(self) -> NDArray[np.float32]:
        """Return the numbers that the matrix stands for, (N, width)."""
        parts = self.integers().reshape(self.rows, -1, self.group).astype(np.float32)
        return (parts * self.scale[:, :, None]).reshape(self.rows, -1)[:, : self.width]


def grouped(integers: NDArray[np.int8], scale: NDArray[np.float32], bits: int, width: int) -> Grouped:
    """Put integers (N, K) into the form that is stored."""
    group = integers.shape[1] // scale.shape[1]
    q: NDArray[Any] = integers
    if bits == NIBBLE:
        nibbles = (integers + OFFSET).astype(np.uint8)
        q = nibbles[:, 0::2] | (nibbles[:, 1::2] << NIBBLE)
    return Grouped(bits, q, scale, group, width)


def without_quantisation(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str]:
    """Split a config into the rest, and how its matrices are stored: "int8", "int4", or "" as numbers."""
    settings = config.get(FIELD)
    if not isinstance(settings, Mapping) or settings.get("quant_method") != METHOD:
        return dict(config), ""  # other quantisation methods are refused when the shape is read
    if settings.get("format") != FORMAT or settings.get("weights") not in BITS:
        raise BadInput(
            f"{where}: {FIELD} = {dict(settings)!r} is not supported",
            hint=f"supported: format {FORMAT} with weights {' or '.join(BITS)}",
        )
    return {key: value for key, value in config.items() if key != FIELD}, str(settings["weights"])
