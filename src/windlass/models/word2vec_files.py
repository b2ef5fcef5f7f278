"""Vectors of tokens on disk: docs/formats/word2vec.md.

A finished directory, and each checkpoint on the way to it, is vectors.safetensors (both matrices and the
counts that the pairs were drawn by) with word2vec.json (settings and progress), and a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from windlass.spec.errors import Damaged
from windlass.store.manifest import DirectoryWriter, load_manifest, read_verified
from windlass.store.store_dir import StoreDir

FORMAT = "windlass-word2vec-1"
TENSORS, TABLE = "vectors.safetensors", "word2vec.json"
VECTORS = "word2vec"
"""The subdirectory of a run's folder."""
DEVIATION = 0.06
"""Of a first embedding: three times that of random weights, because it says something (docs/log.md)."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TokenVectors:
    """The vectors of every token, and how they were trained."""

    inputs_VD: Floats
    outputs_VD: Floats
    counts_V: NDArray[np.int64]
    metadata: Mapping[str, Any]
    """Settings, and the progress of training."""


def save_vectors(folder: Path, vectors: TokenVectors) -> None:
    """Write a directory; it appears whole, with its manifest, or not at all."""
    writer = DirectoryWriter(StoreDir(folder))
    tensors = {"inputs": vectors.inputs_VD, "outputs": vectors.outputs_VD, "counts": vectors.counts_V}
    writer.write(TENSORS, save_tensors({name: np.ascontiguousarray(t) for name, t in tensors.items()}))
    table = {"format": FORMAT, **vectors.metadata}
    writer.write(TABLE, (json.dumps(table, indent=1) + "\n").encode())
    writer.commit({"kind": "word2vec"})


def load_vectors(folder: Path) -> TokenVectors | None:
    """Read a directory, checked byte by byte; None where none was finished."""
    place = StoreDir(folder)
    manifest = load_manifest(place)
    if manifest is None:
        return None
    table = json.loads(read_verified(place, TABLE, manifest))
    if table.pop("format", None) != FORMAT:
        raise Damaged(f"{folder / TABLE}: unknown format of vectors", hint=f"known: {FORMAT}")
    tensors = load_tensors(read_verified(place, TENSORS, manifest))
    return TokenVectors(tensors["inputs"], tensors["outputs"], tensors["counts"], table)


def first_embedding(vectors: TokenVectors, deviation: float = DEVIATION) -> Floats:
    """Return vectors for a model to begin with: centred, and of one deviation on the whole.

    Word2vec gives all tokens a common part, which would only add a constant to every score.
    """
    centred_VD = vectors.inputs_VD - vectors.inputs_VD.mean(axis=0)
    return np.asarray(centred_VD * (deviation / max(float(centred_VD.std()), 1e-12)), np.float32)
