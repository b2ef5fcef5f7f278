"""The three tables of a hidden Markov model, in memory and on disk.

The files are docs/formats/hmm.md: config.json, and model.safetensors with `start`, `transition` and
`emission`.

K states, V tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from windlass.models.files import CONFIG, SINGLE
from windlass.models.mmap_tensors import MappedTensors
from windlass.spec.config import config_from_shape
from windlass.spec.errors import Damaged
from windlass.spec.shape import HmmShape
from windlass.store.manifest import DirectoryWriter

Array = NDArray[Any]
NAMES = ("start", "transition", "emission")
TOLERANCE = 1e-4
"""How far the sum of a row rounded to float32 may be from 1."""


@dataclass(frozen=True)
class HmmWeights:
    """Probabilities of the first state, of transitions and of emitted tokens; every row sums to 1."""

    start_K: Array
    transition_KK: Array
    emission_KV: Array

    @property
    def states(self) -> int:
        return len(self.start_K)

    @property
    def vocabulary(self) -> int:
        return int(self.emission_KV.shape[1])

    @property
    def tables(self) -> dict[str, Array]:
        return dict(zip(NAMES, (self.start_K, self.transition_KK, self.emission_KV), strict=True))

    def astype(self, kind: type[np.floating[Any]]) -> HmmWeights:
        return HmmWeights(*(np.ascontiguousarray(table, dtype=kind) for table in self.tables.values()))


def write_model(
    writer: DirectoryWriter,
    shape: HmmShape,
    weights: HmmWeights,
    special_tokens: Mapping[str, int | list[int] | None] | None = None,
) -> None:
    """Write config.json and the tables into a directory that is committed later."""
    fields = config_from_shape(shape, dtype=str(weights.start_K.dtype), special_tokens=special_tokens)
    writer.write(CONFIG, (json.dumps(fields, indent=1) + "\n").encode())
    write_weights(writer, weights)


def write_weights(writer: DirectoryWriter, weights: HmmWeights) -> None:
    """Write the tables into a directory that is committed later."""
    writer.write(SINGLE, save(weights.tables, metadata={"format": "windlass-hmm"}))


def read_weights(directory: Path) -> HmmWeights:
    """Map the tables of a directory, and check that they are probabilities that fit together."""
    tensors = MappedTensors(directory, [SINGLE])
    missing = [name for name in NAMES if name not in tensors.names()]
    if missing:
        raise Damaged(
            f"{directory / SINGLE}: no tensor '{missing[0]}'", hint=f"a model has {', '.join(NAMES)}"
        )
    weights = HmmWeights(*(tensors.read(name) for name in NAMES))
    _check(weights, directory / SINGLE)
    return weights


def _check(weights: HmmWeights, where: Path) -> None:
    states = weights.states
    if weights.transition_KK.shape != (states, states) or weights.emission_KV.shape[:-1] != (states,):
        sizes = ", ".join(f"{name} {table.shape}" for name, table in weights.tables.items())
        raise Damaged(f"{where}: sizes do not fit together: {sizes}", hint="(K,), (K, K) and (K, V) do")
    for name, table in weights.tables.items():
        if table.dtype.kind != "f" or not (table >= 0).all() or not np.isfinite(table).all():
            raise Damaged(f"{where}: '{name}' holds something other than probabilities")
        if np.abs(table.sum(-1, dtype=np.float64) - 1).max() > TOLERANCE:
            raise Damaged(f"{where}: a row of '{name}' does not sum to 1")
