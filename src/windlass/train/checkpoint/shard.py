"""One process's shard of a checkpoint: safetensors files with slices of the model.

Input: the holdings of this process, with the optimizer's moments and other state of a weight. Output:
part-RRRRR.safetensors, or several files if it is large. The header of each has the position of every tensor
in its whole weight, so a file can be read without any other, and without the layout that made it. The format
is docs/formats/checkpoint.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from windlass.models.tensors import LazyTensor, Writer, write_file
from windlass.parallel.param_shard import ParamShard, Slice

FORMAT = "windlass-checkpoint-2"
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Our names of Adam's moments, and torch's."""

FILE_BYTES = 128 << 20
"""Maximum bytes of one file (a larger tensor has its own); uploads are repeated per file."""

Extra = Mapping[str, Mapping[str, Tensor]]
"""More tensors of each weight: by kind, then by the weight's name."""


def part_name(rank: int, file: int = 0) -> str:
    return f"part-{rank:05d}{f'-{file:03d}' if file else ''}.safetensors"


def weight_key(holding: ParamShard) -> str:
    """Return the key of a slice of a weight; all ranks with the same slice have the same key."""
    return json.dumps([holding.name, holding.box.spans])


def kept_key(holding: ParamShard, replica: int | None) -> str:
    """Return the key of the state (moments, extras) of a slice: shared, or one per replica."""
    return json.dumps([holding.name, holding.box.spans, "kept", replica])


def claims_of(holdings: Sequence[ParamShard], replica: int | None) -> dict[str, int]:
    """Return the keys of everything that this process could write, with their sizes in values.

    If replicas differ, the weights are those of replica 0: a mixture would be no consistent model.
    """
    claims: dict[str, int] = {}
    for holding in holdings:
        size = math.prod(holding.box.shape)
        if size and not replica:
            claims[weight_key(holding)] = size
        if size:
            claims[kept_key(holding, replica)] = len(MOMENTS) * size
    return claims


def divide(claims: Sequence[Mapping[str, int]]) -> list[set[str]]:
    """Return for each rank the keys that it writes: every key once, by the rank with the least load."""
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for rank, own in enumerate(claims):
        for key, size in own.items():
            holders.setdefault(key, []).append(rank)
            sizes[key] = size
    loads, taken = [0] * len(claims), [set[str]() for _ in claims]
    # Large ones first, or the last large one would tip the balance.
    for key in sorted(holders, key=lambda key: (-sizes[key], key)):
        rank = min(holders[key], key=lambda rank: (loads[rank], rank))
        loads[rank] += sizes[key]
        taken[rank].add(key)
    return taken


class Buffers:
    """Buffers for copies, reused from one checkpoint to the next.

    Filling used memory is several times as fast as filling memory that the kernel must first provide.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies, in memory that the next call reuses."""
        for name in self._kept.keys() - tensors.keys():
            del self._kept[name]
        for name, tensor in tensors.items():
            self._kept[name] = _copied(tensor, self._kept.get(name))
        return dict(self._kept)


@dataclass(frozen=True)
class CheckpointShard:
    """One process's part of a checkpoint: tensors by their names in the file, and the header's metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def replica(self) -> int | None:
        """Replica of the moments and extras, None if all replicas are equal."""
        number: int | None = json.loads(self.metadata["replica"])
        return number

    def copied(self, buffers: Buffers | None = None) -> CheckpointShard:
        """Return a copy in separate memory, which training does not touch."""
        return CheckpointShard((buffers or Buffers()).copied(self.tensors), self.metadata)

    def pieces(self) -> Iterator[tuple[str, str | None, Slice, Tensor]]:
        """Yield each tensor with the weight it belongs to, its kind (None for a weight) and its box."""
        boxes = json.loads(self.metadata["boxes"])
        for key, tensor in self.tensors.items():
            name, kind = (key, None) if key in boxes else key.rsplit(".", 1)
            yield name, kind, Slice(tuple((a, b) for a, b in boxes[name]["spans"])), tensor

    def files(self, rank: int, max_bytes: int = FILE_BYTES) -> dict[str, CheckpointShard]:
        """Divide into files: weights before moments and extras, which change differently."""
        boxes, files = json.loads(self.metadata["boxes"]), list[dict[str, Tensor]]([{}])
        for key in sorted(self.tensors, key=lambda key: (key not in boxes, key.rpartition(".")[2], key)):
            filled = sum(tensor.nbytes for tensor in files[-1].values())
            if files[-1] and filled + self.tensors[key].nbytes > max_bytes:
                files.append({})
            files[-1][key] = self.tensors[key]
        return {
            part_name(rank, n): CheckpointShard(own, self._metadata_of(own, boxes))
            for n, own in enumerate(files)
        }

    def write(self, writer: Writer, name: str) -> None:
        promises = {
            key: LazyTensor(tensor.dtype, tuple(tensor.shape), partial(_given, tensor))
            for key, tensor in self.tensors.items()
        }
        write_file(promises, name, writer, self.metadata)

    def _metadata_of(self, keys: Collection[str], boxes: Mapping[str, object]) -> dict[str, str]:
        names = {key if key in boxes else key.rpartition(".")[0] for key in keys}
        own = {name: box for name, box in boxes.items() if name in names}
        return {**self.metadata, "boxes": json.dumps(own)}


def take_part(
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    extra: Extra,
    *,
    keys: Collection[str],
    replica: int | None,
) -> CheckpointShard:
    """Collect the weights and their state whose keys are among `keys`."""
    tensors: dict[str, Tensor] = {}
    boxes: dict[str, object] = {}
    for holding in holdings:
        own: dict[str, Tensor] = {}
        if weight_key(holding) in keys:
            own[holding.name] = holding.tensor
        if kept_key(holding, replica) in keys:
            own |= {f"{holding.name}.{kind}": t for kind, t in _kept(holding, optimizer, extra).items()}
        if own:
            boxes[holding.name] = {"shape": holding.shape, "spans": holding.box.spans}
            assert all(tuple(t.shape) == holding.box.shape for t in own.values()), holding.name
            tensors |= own
    return CheckpointShard(
        tensors, {"format": FORMAT, "boxes": json.dumps(boxes), "replica": json.dumps(replica)}
    )


def _kept(holding: ParamShard, optimizer: torch.optim.Optimizer, extra: Extra) -> dict[str, Tensor]:
    """Return the state of a weight by kind. Before the first step there are no moments."""
    state = optimizer.state.get(holding.tensor, {})
    kept = {kind: state[theirs] for kind, theirs in MOMENTS.items() if theirs in state}
    return kept | {kind: named[holding.name] for kind, named in extra.items() if holding.name in named}


def _given(tensor: Tensor) -> Tensor:
    return tensor


def _copied(tensor: Tensor, target: Tensor | None) -> Tensor:
    """Copy to host memory, into `target` if that fits.

    Contiguous tensors are copied by numpy: it uses only this thread and releases the GIL, while torch would
    start as many threads as compute, which need the cores.
    """
    tensor = tensor.detach()
    if target is None or (target.shape, target.dtype) != (tensor.shape, tensor.dtype):
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        np.copyto(_bytes_of(target), _bytes_of(tensor))
    else:
        target.copy_(tensor)
    return target


def _bytes_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return tensor.view(-1).view(torch.uint8).numpy()
