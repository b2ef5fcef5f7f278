"""Writes the tensor files of a Hugging Face directory: one model.safetensors, or shards with an index.

Input: lazy tensors. Output: files of at most a given size. A file is written as a stream whose tensors are
computed one at a time, so a model of any size can be written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any, Protocol

import torch
from torch import Tensor

from windlass.models.files import INDEX, SINGLE

MAX_SHARD_BYTES = 5_000_000_000
FROM_TORCH = MappingProxyType({"format": "pt"})
"""The header metadata that transformers expects."""

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CODES = {dtype: code for code, dtype in DTYPES.items()} | {torch.int8: "I8", torch.uint8: "U8"}


class Writer(Protocol):
    """Where files go: a StoreDir, or the DirectoryWriter that also records their digests."""

    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file to write to."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that exists only while it is written: its type and size are known before."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    tensors: Mapping[str, LazyTensor], writer: Writer, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write one file, or shards of at most `max_shard_bytes` (a larger tensor gets its own) and an index."""
    shards = _shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        write_file(shards[0], SINGLE, writer)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_file(shard, name, writer)
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    with writer.writing(INDEX) as file:
        file.write((json.dumps(index, indent=2) + "\n").encode())


def write_file(
    tensors: Mapping[str, LazyTensor], name: str, writer: Writer, metadata: Mapping[str, str] = FROM_TORCH
) -> None:
    """Write a safetensors file as a stream: length of the header, header, then tensor after tensor.

    Wider numbers come first and the header is padded, so every tensor lies at a multiple of its item size.
    """
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    text = _header(ordered, metadata)
    with writer.writing(name) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for promise in ordered.values():
            file.write(_bytes_of(promise))


def _header(tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, promise in tensors.items():
        start, end = end, end + promise.nbytes
        header[name] = {
            "dtype": _CODES[promise.dtype],
            "shape": list(promise.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _bytes_of(promise: LazyTensor) -> memoryview:
    tensor = promise.make().detach()
    assert (tensor.dtype, tuple(tensor.shape)) == (promise.dtype, promise.shape), "a promise was not kept"
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data


def _shards(tensors: Mapping[str, LazyTensor], max_bytes: int) -> list[dict[str, LazyTensor]]:
    shards: list[dict[str, LazyTensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    return shards
