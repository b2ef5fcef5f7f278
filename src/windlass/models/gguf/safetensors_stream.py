"""Writes safetensors files from weights that arrive piece by piece, in numpy.

Input: names, sizes and iterators of float32 pieces. Output: model.safetensors, or shards with an index, all
weights of one type. One piece is in memory at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import INDEX, SINGLE
from windlass.models.mmap_tensors import narrowed
from windlass.store.manifest import DirectoryWriter

MAX_SHARD_BYTES = 5_000_000_000
CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
Pieces = Iterator[NDArray[np.float32]]


@dataclass(frozen=True)
class StreamedTensor:
    """One tensor that is made while it is written."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Pieces]

    @property
    def weights(self) -> int:
        return math.prod(self.shape)


def write_weights(
    tensors: Sequence[StreamedTensor],
    dtype: str,
    writer: DirectoryWriter,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write one file, or several and an index."""
    shards = _shards(tensors, SIZES[dtype], max_shard_bytes)
    if len(shards) == 1:
        _write_file(shards[0], dtype, SINGLE, writer)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_file(shard, dtype, name, writer)
        where |= {tensor.name: name for tensor in shard}
    total = sum(tensor.weights for tensor in tensors) * SIZES[dtype]
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    writer.write(INDEX, (json.dumps(index, indent=2) + "\n").encode())


def _shards(tensors: Sequence[StreamedTensor], size: int, limit: int) -> list[list[StreamedTensor]]:
    shards: list[list[StreamedTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.weights * size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.weights * size
    return shards


def _write_file(tensors: Sequence[StreamedTensor], dtype: str, name: str, writer: DirectoryWriter) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.weights * SIZES[dtype]
        header[tensor.name] = {
            "dtype": CODES[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writer.writing(name) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            _write_tensor(tensor, dtype, file)


def _write_tensor(tensor: StreamedTensor, dtype: str, file: IO[bytes]) -> None:
    written = 0
    for piece in tensor.pieces():
        file.write(_bytes_of(piece, dtype))
        written += piece.size
    assert written == tensor.weights, f"{tensor.name}: {written} weights came, {tensor.weights} were promised"


def _bytes_of(values: NDArray[np.float32], dtype: str) -> memoryview:
    if dtype == "bfloat16":
        return narrowed(values).data.cast("B")
    return np.ascontiguousarray(values, dtype=dtype).data.cast("B")
