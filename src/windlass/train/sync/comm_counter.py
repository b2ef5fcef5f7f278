"""The link between replicas, and a count of what each of them must send over it.

Counted are payload bytes that leave this process when a ring does the work, whatever algorithm the
library picks: a sum of S bytes over n replicas costs 2 (n - 1) / n * S, collecting S bytes from each
costs (n - 1) * S.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class CountedGroup:
    """Collectives along one group; None is a single replica, which has nobody to talk to."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.replicas = 1 if group is None else group.size()
        self._summed_bytes, self._gathered_bytes = 0, 0

    @property
    def bytes_sent(self) -> int:
        n = self.replicas
        return 2 * (n - 1) * self._summed_bytes // n + (n - 1) * self._gathered_bytes

    def add_up(self, tensor: Tensor) -> dist.Work:
        """Begin to replace a tensor by the sum over the replicas."""
        self._summed_bytes += tensor.nbytes
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None
        return work

    def gather(self, tensor: Tensor) -> tuple[list[Tensor], dist.Work]:
        """Begin to collect everybody's tensor, in the order of ranks."""
        self._gathered_bytes += tensor.nbytes
        heard = [torch.empty_like(tensor) for _ in range(self.replicas)]
        work = dist.all_gather(heard, tensor, group=self.group, async_op=True)
        assert work is not None
        return heard, work

    def slowest(self, seconds: float, device: torch.device) -> float:
        """Return the largest of all processes' numbers.

        All processes of the run take part, not only this group's: stages of a pipeline, each with a group
        of its own, must come to the same number.
        """
        told = torch.tensor([seconds], dtype=torch.float32, device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        self._summed_bytes += told.nbytes
        return float(told)
