"""The process group of a run, for small control messages.

Tensors are exchanged with torch.distributed; here ranks exchange only small JSON values.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch
import torch.distributed as dist


class ProcessGroup(Protocol):
    """All processes of a run."""

    rank: int
    world: int

    def all_gather_json(self, value: Any) -> list[Any]:
        """Gather a JSON value from every rank; return them by rank. All ranks must call it together."""


class SingleProcess:
    """One process alone; no network."""

    rank, world = 0, 1

    def all_gather_json(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]


class DistributedGroup:
    """The default process group of torch."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def all_gather_json(self, value: Any) -> list[Any]:
        encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.world, dtype=torch.int64)
        lengths[self.rank] = len(encoded)
        dist.all_reduce(lengths)
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(encoded)] = encoded
        gathered = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(gathered, padded)
        return [
            json.loads(bytes(part[:size].tolist()))
            for part, size in zip(gathered, lengths.tolist(), strict=True)
        ]
