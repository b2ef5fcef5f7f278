"""The processes that do a run together, and the few words they must say to each other.

Tensors travel by torch.distributed; here are only small facts, as JSON, which everybody hears.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch
import torch.distributed as dist


class ProcessGroup(Protocol):
    """Everybody who takes part in a run."""

    rank: int
    world: int

    def share(self, fact: Any) -> list[Any]:
        """Tell everybody a fact (JSON) and return everybody's, by rank. All must call it together."""


class SingleProcess:
    """A crew of one, without any network."""

    rank, world = 0, 1

    def share(self, fact: Any) -> list[Any]:
        return [json.loads(json.dumps(fact))]


class DistributedGroup:
    """The default process group of torch."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def share(self, fact: Any) -> list[Any]:
        told = torch.frombuffer(bytearray(json.dumps(fact).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.world, dtype=torch.int64)
        lengths[self.rank] = len(told)
        dist.all_reduce(lengths)
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(told)] = told
        heard = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(heard, padded)
        return [
            json.loads(bytes(part[:size].tolist()))
            for part, size in zip(heard, lengths.tolist(), strict=True)
        ]
