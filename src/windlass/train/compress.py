"""What travels when replicas add up tensors: the values themselves, or something smaller.

Input: a payload, tensors by name, alike in names and shapes on all replicas. `start` sets the exchange
going and returns how to end it. Output, once ended: the payload's tensors hold the sum over the replicas,
bit for bit the same on each.

What a compressor leaves out stays in its `residual` and joins the next payload (error feedback,
Karimireddy et al. 2019, arXiv:1901.09847): late, but not lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from windlass.spec.sync import Sync
from windlass.train.wire import Wire

Payload = dict[str, Tensor]
End = Callable[[], None]

LARGE_VALUES = 65536
"""Tensors of this many values travel on their own, without a copy."""
WHOLE_VALUES = 4096
"""Tensors up to this many values (norms, biases) are never thinned out: they cost next to nothing."""


class Compressor(Protocol):
    """One way to add up tensors over the replicas."""

    residual: Payload

    def start(self, payload: Payload) -> End:
        """Begin to add up; the payload must not be touched before the returned function was called."""

    def forget(self) -> None:
        """Drop what only speeds up convergence, so that whoever loads a checkpoint is in the same place."""


def build_compressor(sync: Sync, wire: Wire) -> Compressor:
    if sync.compress == "bfloat16":
        return Halves(wire)
    if sync.compress == "powersgd":
        return Factors(wire, sync.rank)
    return Largest(wire, sync.keep_share) if sync.compress == "top-k" else Whole(wire)


class Whole:
    """The values as they are. Large tensors travel in place, small ones together."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.residual = wire, Payload()

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        large = [t for t in payload.values() if t.numel() >= LARGE_VALUES and t.is_contiguous()]
        alone = {id(t) for t in large}
        small = [t for t in payload.values() if id(t) not in alone]
        together = _flat(small)
        works = [self._wire.add_up(t) for t in (*large, together) if t.numel()]

        def end() -> None:
            for work in works:
                work.wait()
            _copy_back(together, small)

        return end

    def forget(self) -> None:
        """Nothing is remembered."""


class Halves:
    """Values and sums rounded to bfloat16: half the bytes."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.residual = wire, Payload()

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        halves = _flat(t.bfloat16() for t in payload.values())
        work = self._wire.add_up(halves)

        def end() -> None:
            work.wait()
            _copy_back(halves, payload.values())

        return end

    def forget(self) -> None:
        """Nothing is remembered."""


class Largest:
    """The largest values of each tensor with their places: top-k, Aji and Heafield 2017, arXiv:1704.05021."""

    def __init__(self, wire: Wire, share: float) -> None:
        self._wire, self._share, self.residual = wire, share, Payload()

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        flats = {name: t.reshape(-1) for name, t in payload.items()}
        places = [self._places(flat) for flat in flats.values()]
        values = [flat[place] for flat, place in zip(flats.values(), places, strict=True)]
        for (name, flat), place in zip(flats.items(), places, strict=True):
            left = flat.clone()
            left[place] = 0
            self.residual[name] = left.view_as(payload[name])
        message = torch.cat([*(v.view(torch.int32) for v in values), *places])
        heard, work = self._wire.gather(message)

        def end() -> None:
            work.wait()
            _add_sparse(payload.values(), heard, [len(place) for place in places])

        return end

    def forget(self) -> None:
        """Nothing is remembered."""

    def _places(self, flat: Tensor) -> Tensor:
        size = flat.numel()
        if size <= WHOLE_VALUES:
            return torch.arange(size, dtype=torch.int32, device=flat.device)
        count = math.ceil(self._share * size)
        return torch.topk(flat.abs(), count, sorted=False).indices.to(torch.int32)


class Factors:
    """Two thin factors of each matrix: PowerSGD, Vogels et al. 2019, arXiv:1905.13727, as torch has it."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire, self.residual = wire, Payload()
        # The small number keeps a gradient of zeros from becoming 0/0.
        self._state = PowerSGDState(
            wire.group, rank, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8, use_error_feedback=False
        )
        self._state.iter = 2  # torch waits two steps for DDP to settle its buckets; ours never change

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        flat = _flat(payload.values())
        before = self._state.total_numel_after_compression
        average = powerSGD_hook(self._state, _Bucket(flat, payload.values()))
        sent = self._state.total_numel_after_compression - before
        self._wire.count_sum(sent * flat.element_size())

        def end() -> None:
            average.wait()
            for (name, t), mean in zip(payload.items(), _views(flat, payload.values()), strict=True):
                self.residual[name] = t - mean
                torch.mul(mean, self._wire.replicas, out=t)

        return end

    def forget(self) -> None:
        """Drop the factors from which the next ones would start."""
        self._state.p_memory_dict.clear()
        self._state.q_memory_dict.clear()
        self._state.rng.seed(0)


class _Bucket:
    """What torch's hook asks of a bucket of DDP."""

    def __init__(self, flat: Tensor, tensors: Iterable[Tensor]) -> None:
        self._flat, self._views = flat, _views(flat, tensors)

    def buffer(self) -> Tensor:
        return self._flat

    def gradients(self) -> list[Tensor]:
        return self._views

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def _join(payload: Payload, residual: Payload) -> None:
    """Add what was left out before, which then is no longer outstanding."""
    for name in payload:
        left = residual.pop(name, None)
        if left is not None:
            payload[name].add_(left)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    flats = [t.reshape(-1) for t in tensors]
    return torch.cat(flats) if flats else torch.empty(0)


def _views(flat: Tensor, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return parts of a flat tensor, shaped as the tensors it was made of."""
    shaped = list(tensors)
    parts = torch.split(flat, [t.numel() for t in shaped])
    return [part.view(t.shape) for part, t in zip(parts, shaped, strict=True)]


def _copy_back(flat: Tensor, tensors: Iterable[Tensor]) -> None:
    shaped = list(tensors)
    for t, part in zip(shaped, _views(flat, shaped), strict=True):
        t.copy_(part)


def _add_sparse(tensors: Iterable[Tensor], heard: list[Tensor], counts: list[int]) -> None:
    """Add up everybody's values at their places, in the order of ranks, so that the bits agree."""
    messages: list[Any] = [message.chunk(2) for message in heard]
    for number, t in enumerate(tensors):
        span = slice(sum(counts[:number]), sum(counts[: number + 1]))
        total = torch.zeros(t.numel(), dtype=t.dtype, device=t.device)
        for values, places in messages:
            total.index_add_(0, places[span], values[span].view(t.dtype))
        t.copy_(total.view_as(t))
