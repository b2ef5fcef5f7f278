"""Memory constants: the defaults of each framework, and a few fitted constants.

Defaults are read from the sources of each framework (tables/memory.toml) and are never fitted, so a framework
whose measurements are left out is still predicted by them. The constants are few and the same for all.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

TABLE = Path(__file__).parents[1] / "tables" / "memory.toml"


@dataclass(frozen=True)
class MemoryDefaults:
    """Of one generation of one framework; bytes are for one weight."""

    weight: float
    gradient: float
    passing: float
    """A gradient in the precision of computing, beside the accumulated one."""
    state: float
    shard: float
    """All of these together, where everything is divided."""
    split: Literal["even", "greedy"]
    """How layers are given to stages: in equal numbers, or to each until its share of the cost is passed."""
    copies: float
    """Times that queries and keys are stored again after their rotation."""
    ffn_copies: float
    """Tensors of the width of a gated feed-forward that are stored: 4 if the activation's result is one."""
    bucket_bytes: float
    fragments: float
    """Memory that the allocator holds but cannot use, over what is in use."""
    layer_gradient: float = 0
    """Bytes for a weight of one matrix of every shape: a place for gradients that are added elsewhere."""
    whole_inputs: float = 0
    """Inputs of products, of two in a layer, that sequence parallelism leaves gathered until the way back."""
    refuses_few: bool = False
    """Whether a pipeline with fewer micro-batches than stages, less one, is an error."""
    stores_float8: bool = False
    """Whether inputs of products in float8 are stored as such, not in the precision that they came in."""
    every_second: bool = False
    """Whether its selective policy, which lab/planner reads as full recomputation of a half, keeps the
    result of every second product of a layer."""


@dataclass(frozen=True)
class MemoryConstants:
    """Fitted, the same for all software; `logarithms` of errors on sources that the fit had not seen."""

    logits: float
    """Bytes for one logit: in the precision of computing, in float32, its softmax, and gradients."""
    working: float
    """Recomputed activations and their gradients, in layers."""
    fragments: float
    """Factor on the `fragments` of the software defaults."""
    group_bytes: float
    """Buffers of the communicators of one axis, outside the allocator."""
    low: float
    high: float
    """Factors on a prediction that hold nine of ten measurements between them."""


@dataclass(frozen=True)
class FittedMemory:
    """All constants that `device_memory` needs."""

    constants: MemoryConstants
    software: dict[str, MemoryDefaults]

    def habits(self, software: str) -> MemoryDefaults:
        return self.software.get(software) or self.software[""]


@cache
def _published() -> FittedMemory:
    table = tomllib.loads(TABLE.read_text())
    software = {name: MemoryDefaults(**entry) for name, entry in table["software"].items()}
    return FittedMemory(MemoryConstants(**table["constants"]), software)


PUBLISHED = _published()
