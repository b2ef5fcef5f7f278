"""Reads a checkpoint of any layout.

Input: the directory of a finished checkpoint. Output: any slice of any tensor, read from the shards that it
overlaps, and nothing else: a whole model never has to be in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from windlass.models.tensors import DTYPES
from windlass.parallel.param_shard import Slice, whole
from windlass.spec.errors import Damaged
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.shard import FORMAT

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a shard: a slice of a weight or of its state."""

    file: Any
    key: str
    box: Slice
    replica: int | None
    """Replica that it belongs to, if replicas differ."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.file.get_slice(self.key).get_dtype()]

    def read(self, box: Slice) -> Tensor:
        """Return a view into the file; bytes come in when they are copied from it."""
        tensor: Tensor = self.file.get_slice(self.key)[box.within(self.box)]
        return tensor


class CheckpointReader:
    """The tensors of a checkpoint by name. Headers are read at once, values when asked for.

    A weight is kept under NAME. What belongs to it has a kind: NAME.first, NAME.second and so on, each in
    the same boxes as its weight. Where replicas differ, every one has its own of these.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, list[StoredTensor]] = {}
        manifest = load_manifest(StoreDir(path))
        for name in manifest.files if manifest is not None else ():
            if name.endswith(SUFFIX):
                self._open(path / name)
        replicas = {s.replica for found in self._stored.values() for s in found if s.replica is not None}
        self.replicas = len(replicas)
        """Number of replicas that were saved separately; 0 if all are equal."""

    def names(self) -> list[str]:
        """List the weights."""
        return sorted(name for name in self._shapes if name in self._stored)

    def has(self, name: str, kind: str | None = None) -> bool:
        return _key(name, kind) in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole weight."""
        self._check_known(name)
        return self._shapes[name]

    def dtype(self, name: str, kind: str | None = None) -> torch.dtype:
        self._check_known(name, kind)
        return self._stored[_key(name, kind)][0].dtype

    def check(
        self, name: str, shape: Sequence[int], box: Slice, kind: str | None = None, replica: int | None = None
    ) -> None:
        """Raise Damaged if the shards do not hold all of a box; reads no values."""
        if self.shape(name) != tuple(shape):
            raise Damaged(f"{self.path}: '{name}' is {list(self.shape(name))} here, not {list(shape)}")
        self._pieces(name, box, kind, replica)

    def read(
        self, name: str, box: Slice | None = None, kind: str | None = None, replica: int | None = None
    ) -> Tensor:
        """Return a box of a tensor, or all of it, in memory of its own."""
        box = box or whole(self.shape(name))
        target = torch.empty(box.shape, dtype=self.dtype(name, kind))
        self.read_into(target, name, box, kind, replica)
        return target

    def read_into(
        self, target: Tensor, name: str, box: Slice, kind: str | None = None, replica: int | None = None
    ) -> None:
        """Fill a tensor that holds a box, piece by piece; its own type and device stay."""
        with torch.no_grad():
            for stored, piece in self._pieces(name, box, kind, replica):
                target[piece.within(box)].copy_(stored.read(piece))

    def _pieces(
        self, name: str, box: Slice, kind: str | None, replica: int | None
    ) -> list[tuple[StoredTensor, Slice]]:
        """Divide a box into pieces that one part each holds."""
        self._check_known(name, kind)
        pieces, left = cover(box, self._candidates(_key(name, kind), replica))
        if left:
            raise Damaged(f"{self.path}: no part holds '{_key(name, kind)}' at {list(left[0].spans)}")
        return pieces

    def _candidates(self, key: str, replica: int | None) -> list[StoredTensor]:
        """A replica beyond the saved ones uses the state of a saved one."""
        whose = (replica or 0) % self.replicas if self.replicas else None
        return [s for s in self._stored[key] if s.replica in (None, whose)]

    def _check_known(self, name: str, kind: str | None = None) -> None:
        if not self.has(name, kind):
            raise Damaged(f"{self.path}: no part holds '{_key(name, kind)}'")

    def _open(self, path: Path) -> None:
        for name, shape, stored in _tensors_of(path):
            if self._shapes.setdefault(name, shape) != shape:
                raise Damaged(f"{path}: '{name}' is {list(shape)} here, {list(self._shapes[name])} elsewhere")
            self._stored.setdefault(stored.key, []).append(stored)


class Boxed(Protocol):
    """An object that holds a slice of a tensor."""

    @property
    def box(self) -> Slice: ...


AnyBoxed = TypeVar("AnyBoxed", bound=Boxed)


def cover(box: Slice, stored: Iterable[AnyBoxed]) -> tuple[list[tuple[AnyBoxed, Slice]], list[Slice]]:
    """Divide a box into disjoint pieces that are stored; also return what is not stored."""
    pieces: list[tuple[AnyBoxed, Slice]] = []
    left = [] if box.empty else [box]
    for one in stored:
        rest: list[Slice] = []
        for open_box in left:
            common = open_box.overlap(one.box)
            if common is None:
                rest.append(open_box)
            else:
                pieces.append((one, common))
                rest.extend(without(open_box, common))
        left = rest
    return pieces, left


def without(box: Slice, hole: Slice) -> Iterator[Slice]:
    """Yield the boxes that together are `box` minus a hole inside it."""
    spans = list(box.spans)
    for dimension, (start, stop) in enumerate(hole.spans):
        before, after = (spans[dimension][0], start), (stop, spans[dimension][1])
        for span in (before, after):
            if span[0] < span[1]:
                yield Slice((*spans[:dimension], span, *spans[dimension + 1 :]))
        spans[dimension] = (start, stop)


def _tensors_of(path: Path) -> Iterator[tuple[str, tuple[int, ...], StoredTensor]]:
    """Read the header of a shard file: for every tensor, its weight and the weight's shape."""
    try:
        file: Any = safe_open(str(path), framework="pt")
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise Damaged(
                f"{path}: part of unknown format {metadata.get('format')!r}", hint=f"known: {FORMAT}"
            )
        boxes, replica = json.loads(metadata["boxes"]), json.loads(metadata["replica"])
        for key in file.offset_keys():
            name = key if key in boxes else key.rpartition(".")[0]
            box = Slice(tuple((int(start), int(stop)) for start, stop in boxes[name]["spans"]))
            shape = tuple(int(size) for size in boxes[name]["shape"])
            # The weights are the same in all replicas; only one of them writes each.
            yield name, shape, StoredTensor(file, key, box, None if key == name else replica)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path}: not readable as a part of a checkpoint: {error}") from None


def _key(name: str, kind: str | None) -> str:
    return name if kind is None else f"{name}.{kind}"
