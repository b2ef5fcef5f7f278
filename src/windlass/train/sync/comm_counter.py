"""Collectives between replicas, with a count of the bytes that each replica sends.

Counted are the payload bytes that a ring algorithm would send, whatever algorithm the library uses: an
all-reduce of S bytes over n replicas costs 2 (n - 1) / n * S, an all-gather of S bytes from each costs (n -
1) * S.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class CountedGroup:
    """Collectives along one group; None for a single replica, which communicates with none."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.replicas = 1 if group is None else group.size()
        self._summed_bytes, self._gathered_bytes = 0, 0

    @property
    def bytes_sent(self) -> int:
        n = self.replicas
        return 2 * (n - 1) * self._summed_bytes // n + (n - 1) * self._gathered_bytes

    def add_up(self, tensor: Tensor) -> dist.Work:
        """Start an all-reduce of a tensor over the replicas."""
        self._summed_bytes += tensor.nbytes
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None
        return work

    def gather(self, tensor: Tensor) -> tuple[list[Tensor], dist.Work]:
        """Start an all-gather of a tensor, in the order of ranks."""
        self._gathered_bytes += tensor.nbytes
        gathered = [torch.empty_like(tensor) for _ in range(self.replicas)]
        work = dist.all_gather(gathered, tensor, group=self.group, async_op=True)
        assert work is not None
        return gathered, work

    def slowest(self, seconds: float, device: torch.device) -> float:
        """Return the largest of all processes' numbers.

        All processes of the run take part, not only this group's: the stages of a pipeline, each with its own
        group, must get the same number.
        """
        slowest_s = torch.tensor([seconds], dtype=torch.float32, device=device)
        dist.all_reduce(slowest_s, op=dist.ReduceOp.MAX)
        self._summed_bytes += slowest_s.nbytes
        return float(slowest_s)
