"""What one process writes into a checkpoint: a safetensors file with boxes of the model.

Input: the holdings of this process, with the optimizer's moments and whatever else belongs to a weight.
Output: part-RRRRR.safetensors. Its header says of which whole each tensor is which box, so a part can be
read without any other, and without the layout that made it. The format is docs/formats/checkpoint.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from windlass.models.tensors import Promise, Writer, write_file
from windlass.parallel.holding import Holding

FORMAT = "windlass-checkpoint-2"
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Our names of Adam's moments, to torch's."""

Extra = Mapping[str, Mapping[str, Tensor]]
"""More tensors of each weight: by kind, then by the weight's name."""


def part_name(rank: int) -> str:
    return f"part-{rank:05d}.safetensors"


def weight_key(holding: Holding) -> str:
    """Name a box of a weight. Whoever holds the same box has the same key for it."""
    return json.dumps([holding.name, holding.box.spans])


def kept_key(holding: Holding, replica: int | None) -> str:
    """Name what is kept with a box of a weight: the same for all, or each replica's own."""
    return json.dumps([holding.name, holding.box.spans, "kept", replica])


def claims_of(holdings: Sequence[Holding], replica: int | None) -> dict[str, int]:
    """Return the keys of all that this process could write, with their sizes in numbers.

    Where replicas differ, the weights are those of the first: a mixture would be nobody's model.
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
    """Return for each rank the keys that it writes: every key once, by whichever has least to do."""
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


@dataclass(frozen=True)
class Part:
    """What one process writes: tensors by the names they get in the file, and what its header says."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def copied(self) -> Part:
        """Return the same in memory of its own, which training does not touch."""
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return Part(copies, self.metadata)

    def write(self, writer: Writer, rank: int) -> None:
        promises = {
            name: Promise(tensor.dtype, tuple(tensor.shape), partial(_given, tensor))
            for name, tensor in self.tensors.items()
        }
        write_file(promises, part_name(rank), writer, self.metadata)


def take_part(
    holdings: Sequence[Holding],
    optimizer: torch.optim.Optimizer,
    extra: Extra,
    *,
    keys: Collection[str],
    replica: int | None,
) -> Part:
    """Gather the weights and what is kept with them whose keys are among `keys`."""
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
    return Part(tensors, {"format": FORMAT, "boxes": json.dumps(boxes), "replica": json.dumps(replica)})


def _kept(holding: Holding, optimizer: torch.optim.Optimizer, extra: Extra) -> dict[str, Tensor]:
    """Return what is kept with a weight by kind. Before the first step there are no moments yet."""
    state = optimizer.state.get(holding.tensor, {})
    kept = {kind: state[theirs] for kind, theirs in MOMENTS.items() if theirs in state}
    return kept | {kind: named[holding.name] for kind, named in extra.items() if holding.name in named}


def _given(tensor: Tensor) -> Tensor:
    return tensor
