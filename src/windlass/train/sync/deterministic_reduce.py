"""Adds up gradients in the order of the job's replicas, however many processes computed them.

Floating-point sums depend on their order. In a deterministic run the batch is always divided as the job says
([layout] dp), each part is computed separately, and the parts are added up in order: the bits are the same
for any number of processes, before and after a fault.

Input: for each part that this process computed, its gradients. Output: the sums, on every process. Each
process adds up one segment of all numbers and all-gathers the result, so no more bytes are sent than by an
all-reduce, as long as every process has one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.corpus.batches import divided
from windlass.parallel.param_shard import ParamShard
from windlass.spec.job import Job


def parts_of(parts: int, workers: int) -> list[range]:
    """Return the parts of the batch that each worker computes."""
    return divided(0, parts, [1] * workers)


class OrderedSum:
    """The gradients of a step, part by part."""

    def __init__(self, holdings: Sequence[ParamShard], group: dist.ProcessGroup | None, parts: int) -> None:
        self._holdings = [h for h in holdings if h.tensor.numel()]
        self._group, self._parts = group, parts
        self._workers = 1 if group is None else group.size()
        self._rank = 0 if group is None else group.rank()
        self._own = parts_of(parts, self._workers)
        self._size = sum(h.tensor.numel() for h in self._holdings)
        self._kept: dict[int, Tensor] = {}

    @property
    def own(self) -> range:
        """The parts that this process computes."""
        return self._own[self._rank]

    def keep(self, part: int) -> None:
        """Store the current gradients of the holdings as those of a part."""
        flat = self._kept.get(part)
        if flat is None:
            flat = self._kept[part] = torch.empty(self._size, device=self._holdings[0].tensor.device)
        for holding, piece in zip(self._holdings, self._pieces(flat), strict=True):
            gradient = holding.tensor.grad
            piece.copy_(gradient) if gradient is not None else piece.zero_()

    def add_up(self) -> None:
        """Set the gradient of every holding to the sum over all parts."""
        total = _sum_in_order(self._kept) if self._group is None else self._exchanged()
        for holding, piece in zip(self._holdings, self._pieces(total), strict=True):
            holding.tensor.grad = piece

    def _exchanged(self) -> Tensor:
        stretches = [len(r) for r in divided(0, self._size, [1] * self._workers)]
        mine = stretches[self._rank]
        sent = torch.cat([t for s in self._split(stretches) for t in s])
        sizes_in = [mine * len(parts) for parts in self._own]
        sizes_out = [stretch * len(self.own) for stretch in stretches]
        received = torch.empty(sum(sizes_in), device=sent.device)
        dist.all_to_all_single(received, sent, sizes_in, sizes_out, group=self._group)
        # Parts are numbered along the workers, so they arrive in their order.
        stretch = _sum_in_order(dict(enumerate(received.view(self._parts, mine))))
        longest = max(stretches)
        padded = torch.zeros(longest, device=sent.device)
        padded[:mine] = stretch
        gathered = [torch.empty_like(padded) for _ in stretches]
        dist.all_gather(gathered, padded, group=self._group)
        return torch.cat([t[:size] for t, size in zip(gathered, stretches, strict=True)])

    def _split(self, stretches: Sequence[int]) -> list[list[Tensor]]:
        """Return for each worker its segment of every part that this process computed."""
        cut = [torch.split(self._kept[part], list(stretches)) for part in self.own]
        return [[stretch[worker] for stretch in cut] for worker in range(self._workers)]

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        sizes = [h.tensor.numel() for h in self._holdings]
        return [
            piece.view(h.tensor.shape)
            for h, piece in zip(self._holdings, torch.split(flat, sizes), strict=True)
        ]


def _sum_in_order(parts: Mapping[int, Tensor]) -> Tensor:
    first, *others = (parts[number] for number in sorted(parts))
    total = first.clone()
    for part in others:
        total += part
    return total


def not_repeatable(job: Job) -> Iterator[str]:
    """Yield the reasons why a job cannot be deterministic."""
    if job.sync.local or job.sync.compress != "none":
        yield "[sync] must exchange whole gradients at every step (policy = 'every-step', no compress)"
    if job.layout.shares is not None:
        yield "[layout] shares follow the measured speed of machines, which varies"
    if job.layout.asynchronous:
        yield "[layout] schedule = 'asynchronous' depends on timing"
