"""The tensors of a directory as numpy arrays over the files themselves.

Input: a directory with safetensors. Output: read-only arrays that cost no memory of their own: pages come
from the file when they are touched, and every process that serves the same model shares them.

numpy has no bfloat16, so such a tensor is an array of its bits (uint16); `widened` gives the numbers.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import open_tensors, weight_files
from windlass.spec.errors import Damaged

Array = NDArray[Any]

KINDS: dict[str, type[np.generic]] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8, "U8": np.uint8,
    "U16": np.uint16, "U32": np.uint32, "I32": np.int32,
}  # fmt: skip
LENGTH_BYTES = 8


@dataclass(frozen=True)
class _Entry:
    """The position of one tensor in a file."""

    file: Path
    code: str
    shape: tuple[int, ...]
    start: int


class MappedTensors:
    """The tensors of a directory by the names in its files: those given, or the weights of a model."""

    def __init__(self, directory: Path, files: Sequence[str] = ()) -> None:
        self.directory = directory
        self._maps: dict[Path, mmap.mmap] = {}
        self._entries: dict[str, _Entry] = {}
        for name in files or weight_files(directory):
            self._open(directory / name)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def code(self, name: str) -> str:
        """Return the type of a tensor as safetensors says it, "F32" or "BF16"."""
        return self._entries[name].code

    def file_of(self, name: str) -> Path:
        return self._entries[name].file

    def read(self, name: str) -> Array:
        """Return a tensor, aligned for its numbers: where the file does not align it, as a copy."""
        entry = self._entries[name]
        kind = np.dtype(KINDS[entry.code])
        count = int(np.prod(entry.shape, dtype=np.int64))
        flat: Array = np.frombuffer(self._maps[entry.file], kind, count, entry.start)
        return (flat if flat.flags.aligned else flat.copy()).reshape(entry.shape)

    def _open(self, path: Path) -> None:
        open_tensors(path, framework="np")  # checks the header against the length of the file
        with path.open("rb") as file:
            self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header = json.loads(file.read(length))
        for name, fields in header.items():
            if name == "__metadata__":
                continue
            if name in self._entries:
                raise Damaged(f"{path}: tensor '{name}' is also in {self._entries[name].file.name}")
            start = LENGTH_BYTES + length + fields["data_offsets"][0]
            self._entries[name] = _Entry(path, fields["dtype"], tuple(fields["shape"]), start)


def widened(array: Array) -> NDArray[np.float32]:
    """Return the numbers of an array as float32; uint16 stands for the bits of bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16 numbers, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
