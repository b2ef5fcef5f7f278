"""Reads GGUF files: metadata, and tensors as bytes over the mapped file.

Input: a file that may be cut off, damaged or made to do harm. Every count, length and offset is checked
against the bytes that are there before anything is allocated. Output: GgufFile. Versions 2 and 3 are read,
little-endian; the layout is in docs/formats/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from windlass.models.gguf.ggml_types import BY_CODE, GgmlType
from windlass.spec.errors import BadInput, Damaged, NotFound

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Where tensors begin, unless `general.alignment` says otherwise."""
MAX_DIMS = 4
MAX_NAME = 1024
MAX_WEIGHTS = 1 << 48
MAX_ALIGNMENT = 1 << 20
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
"""Codes of metadata values, as numpy types."""
SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
T = TypeVar("T")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str
    kind: GgmlType
    shape: tuple[int, ...]
    """Rows first, as everywhere outside of ggml; ggml lists the row's length first."""
    start: int
    file: int = 0

    @property
    def weights(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.weights)


class GgufFile:
    """A checked file: `metadata` by key, `tensors` by name, and the bytes of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._maps = [_mapped(path)]
        header = _Header(self._maps[0], path)
        self.metadata: dict[str, Any] = header.metadata
        self.tensors: dict[str, TensorInfo] = header.tensors
        for number, sibling in enumerate(self._siblings(), start=1):
            self._maps.append(_mapped(sibling))
            self._add(_Header(self._maps[-1], sibling, number).tensors, sibling)
        wanted = self.metadata.get("split.tensors.count", len(self.tensors))
        if wanted != len(self.tensors):
            raise Damaged(f"{path}: its parts hold {len(self.tensors)} tensors, not {wanted}")

    @property
    def nbytes(self) -> int:
        """Bytes of the file, or of all its parts."""
        return sum(len(mapped) for mapped in self._maps)

    def rows(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, one line for each of its rows; they are those of the file."""
        row = info.kind.nbytes(info.shape[-1])
        flat = np.frombuffer(self._maps[info.file], np.uint8, info.nbytes, info.start)
        return flat.reshape(-1, row)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return one value of the metadata, of the type that it must have."""
        value = self.metadata.get(key, default)
        if value is None:
            raise BadInput(f"{self.path}: metadata '{key}' is missing")
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadInput(f"{self.path}: metadata '{key}' is {_shown(value)}, not a {kind.__name__}")
        return value

    def _siblings(self) -> list[Path]:
        """Find the other parts of a model that is divided among files; the first part names their number."""
        count = self.metadata.get("split.count", 1)
        if count == 1:
            return []
        match = SPLIT.fullmatch(self.path.name)
        if match is None or int(match["count"]) != count or self.metadata.get("split.no") != 0:
            raise BadInput(
                f"{self.path}: is one of {_shown(count)} parts of a model",
                hint=f"give the first part, NAME-00001-of-{count:05d}.gguf"
                if isinstance(count, int)
                else None,
            )
        names = [f"{match['stem']}-{number:05d}-of-{match['count']}.gguf" for number in range(2, count + 1)]
        return [self.path.with_name(name) for name in names]

    def _add(self, tensors: Mapping[str, TensorInfo], where: Path) -> None:
        for name, info in tensors.items():
            if name in self.tensors:
                raise Damaged(f"{where}: tensor '{name}' is also in another part")
            self.tensors[name] = info


class _Header:
    """The part of a file before its tensors."""

    def __init__(self, mapped: mmap.mmap, path: Path, file: int = 0) -> None:
        self._bytes, self._path, self._at, self._file = mapped, path, 0, file
        if self._take(4, "magic") != MAGIC:
            raise BadInput(f"{path}: not a GGUF file: it does not begin with 'GGUF'")
        self._check_version(self._number("<u4", "version"))
        tensors = self._count("tensors", 25)  # a name's length, one dimension, type, offset
        values = self._count("metadata values", 13)
        self.metadata = dict(self._values(values))
        infos = [self._tensor() for _ in range(tensors)]
        self.tensors = self._placed(infos)

    def _check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        if version & 0xFFFF == 0:
            raise BadInput(f"{self._path}: a big-endian GGUF file, which is not supported")
        raise BadInput(f"{self._path}: GGUF version {version} is not supported", hint="supported: 2 and 3")

    def _values(self, count: int) -> list[tuple[str, Any]]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("a key")
            if key in found:
                raise Damaged(f"{self._path}: metadata '{key[:80]}' is there twice")
            found[key] = self._value(self._number("<u4", "a value's type"), f"metadata '{key[:80]}'")
        return list(found.items())

    def _value(self, code: int, what: str, *, nested: bool = False) -> Any:
        if code == STRING:
            return self._string(what)
        if code == ARRAY and not nested:
            return self._array(what)
        if code not in SCALARS:
            raise Damaged(f"{self._path}: {what} has the unknown type {code}")
        value = self._number(SCALARS[code], what)
        return bool(value) if code == BOOL else value

    def _array(self, what: str) -> Any:
        code = self._number("<u4", what)
        if code == STRING:
            return [self._string(what) for _ in range(self._count(what, 8))]
        if code not in SCALARS:
            raise Damaged(f"{self._path}: {what} is a list of the type {code}, which is not known or nested")
        kind = np.dtype(SCALARS[code])
        count = self._count(what, kind.itemsize)
        return np.frombuffer(self._take(count * kind.itemsize, what), kind)

    def _tensor(self) -> TensorInfo:
        name = self._string("the name of a tensor", MAX_NAME)
        dims = self._number("<u4", f"tensor '{name}'")
        if not 1 <= dims <= MAX_DIMS:
            raise Damaged(f"{self._path}: tensor '{name}' has {dims} dimensions, not 1 to {MAX_DIMS}")
        shape = tuple(self._number("<u8", f"tensor '{name}'") for _ in range(dims))[::-1]
        code, start = self._number("<u4", f"tensor '{name}'"), self._number("<u8", f"tensor '{name}'")
        kind = BY_CODE.get(code)
        if kind is None:
            raise BadInput(
                f"{self._path}: tensor '{name}' is of type {code}, which this version does not know"
            )
        if min(shape) < 1 or math.prod(shape) > MAX_WEIGHTS:
            raise Damaged(f"{self._path}: tensor '{name}' has the impossible size {list(shape)}")
        if shape[-1] % kind.block:
            raise Damaged(
                f"{self._path}: a row of tensor '{name}' has {shape[-1]} weights, "
                f"not a multiple of the {kind.block} of {kind.name}"
            )
        return TensorInfo(name, kind, shape, start, self._file)

    def _placed(self, infos: list[TensorInfo]) -> dict[str, TensorInfo]:
        """Turn offsets into positions in the file; tensors lie inside of it, and not one over another."""
        step = self.metadata.get("general.alignment", ALIGNMENT)
        if type(step) is not int or not 0 < step <= MAX_ALIGNMENT or step & (step - 1):
            raise Damaged(f"{self._path}: general.alignment is {_shown(step)}, not a power of two")
        base = -(-self._at // step) * step
        placed: dict[str, TensorInfo] = {}
        end, before = base, "the header"
        for info in sorted(infos, key=lambda info: info.start):
            start = base + info.start
            if info.name in placed:
                raise Damaged(f"{self._path}: tensor '{info.name}' is there twice")
            if info.start % step or start < end:
                raise Damaged(f"{self._path}: tensor '{info.name}' does not begin after {before}, aligned")
            end, before = start + info.nbytes, f"'{info.name}'"
            if end > len(self._bytes):
                raise Damaged(
                    f"{self._path}: tensor '{info.name}' ends at byte {end}, "
                    f"but the file has {len(self._bytes)}",
                    hint="it was cut off on its way; fetch it again",
                )
            placed[info.name] = TensorInfo(info.name, info.kind, info.shape, start, self._file)
        return {info.name: placed[info.name] for info in infos}

    def _count(self, what: str, smallest: int) -> int:
        """Read how many items follow; each takes `smallest` bytes at least, so the file bounds them."""
        count = self._number("<u8", what)
        if count * smallest > len(self._bytes) - self._at:
            raise Damaged(
                f"{self._path}: announces {count} {what}, more than fit into its {len(self._bytes)} bytes"
            )
        return count

    def _string(self, what: str, longest: int | None = None) -> str:
        length = self._count(f"bytes of {what}", 1)
        if longest is not None and length > longest:
            raise Damaged(f"{self._path}: {what} has {length} bytes, more than {longest}")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError:
            raise Damaged(f"{self._path}: {what} is not UTF-8 text") from None

    def _number(self, kind: str, what: str) -> Any:
        form = _STRUCTS[kind]
        return form.unpack(self._take(form.size, what))[0]

    def _take(self, count: int, what: str) -> bytes:
        start, end = self._at, self._at + count
        if end > len(self._bytes):
            raise Damaged(
                f"{self._path}: ends at byte {len(self._bytes)}, inside of {what}",
                hint="it was cut off on its way; fetch it again",
            )
        self._at = end
        return self._bytes[start:end]


_STRUCTS = {
    kind: struct.Struct("<" + letter)
    for kind, letter in (
        ("<u1", "B"), ("<i1", "b"), ("<u2", "H"), ("<i2", "h"), ("<u4", "I"), ("<i4", "i"), ("<f4", "f"),
        ("<u8", "Q"), ("<i8", "q"), ("<f8", "d"),
    )
}  # fmt: skip


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except (ValueError, OSError) as error:  # an empty file cannot be mapped
        raise BadInput(f"{path}: not readable as a GGUF file: {error}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."
