"""Sums tensors over replicas, with or without compression.

Input: a payload, tensors by name, with the same names and shapes on all replicas. `start` starts the exchange
and returns a function that completes it. Output, once completed: the payload's tensors hold the sum over the
replicas, bit-identical on each.

What a compressor leaves out stays in its `residual` and is added to the next payload (error feedback,
Karimireddy et al. 2019, arXiv:1901.09847).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from windlass.spec.sync import Sync
from windlass.train.sync.comm_counter import CountedGroup

Payload = dict[str, Tensor]
End = Callable[[], None]

LARGE_VALUES = 65536
"""Tensors of at least this many values are sent on their own, without a copy."""
WHOLE_VALUES = 1024
"""Tensors up to this many values (norms, biases) are never compressed: they cost next to nothing."""


class Compressor(Protocol):
    """One way to sum tensors over the replicas."""

    residual: Payload

    def start(self, payload: Payload) -> End:
        """Start the sum; the payload must not be touched before the returned function was called."""

    def forget(self) -> None:
        """Drop state that only speeds up convergence, so that a run that resumes from a checkpoint is
        identical."""


def build_compressor(sync: Sync, wire: CountedGroup) -> Compressor:
    if sync.compress == "bfloat16":
        return Halves(wire)
    if sync.compress == "powersgd":
        return Factors(wire, sync.rank)
    return Largest(wire, sync.keep_share) if sync.compress == "top-k" else Uncompressed(wire)


class Uncompressed:
    """No compression. Large tensors are summed in place, small ones together."""

    def __init__(self, wire: CountedGroup) -> None:
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
        """Nothing to drop."""


class Halves:
    """Values and sums rounded to bfloat16: half the bytes."""

    def __init__(self, wire: CountedGroup) -> None:
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
        """Nothing to drop."""


class Largest:
    """The largest values of each tensor with their indices: top-k, Aji and Heafield 2017,
    arXiv:1704.05021."""

    def __init__(self, wire: CountedGroup, share: float) -> None:
        self._wire, self._share, self.residual = wire, share, Payload()
        self._rest = Uncompressed(wire)

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        thinned = {name: t for name, t in payload.items() if t.numel() > WHOLE_VALUES}
        end_rest = self._rest.start({name: t for name, t in payload.items() if name not in thinned})
        places = [_largest(t, self._share) for t in thinned.values()]
        values = [t.reshape(-1)[place] for t, place in zip(thinned.values(), places, strict=True)]
        for (name, t), place in zip(thinned.items(), places, strict=True):
            left = t.reshape(-1).clone()
            left[place] = 0
            self.residual[name] = left.view_as(t)
        end_gather = self._exchange(list(thinned.values()), values, places)

        def end() -> None:
            end_rest()
            end_gather()

        return end

    def forget(self) -> None:
        """Nothing to drop."""

    def _exchange(self, tensors: list[Tensor], values: list[Tensor], places: list[Tensor]) -> End:
        """Gather values and indices of all replicas in one message, and fill the tensors with the sums."""
        if not tensors:
            return lambda: None
        received, work = self._wire.gather(torch.cat([*(v.view(torch.int32) for v in values), *places]))

        def end() -> None:
            work.wait()
            _add_sparse(tensors, received, [len(place) for place in places])

        return end


class Factors:
    """Two thin factors of each matrix, M = P Q': PowerSGD, Vogels et al. 2019, arXiv:1905.13727.

    One power iteration per exchange: P = M Q from the last Q, made orthonormal, then Q = M' P. torch has it
    as a DDP hook, whose chain of futures sometimes aborts a gloo process.
    """

    def __init__(self, wire: CountedGroup, rank: int) -> None:
        self._wire, self._rank, self.residual = wire, rank, Payload()
        self._rest = Uncompressed(wire)
        self._q: Payload = {}

    def start(self, payload: Payload) -> End:
        _join(payload, self.residual)
        matrices = {name: t.flatten(1) for name, t in payload.items() if self._pays(t)}
        end_rest = self._rest.start({name: t for name, t in payload.items() if name not in matrices})
        p = [m @ self._start_of(name, m) for name, m in matrices.items()]
        self._add_up(p)
        p = [torch.linalg.qr(factor).Q for factor in p]
        q = [m.t() @ factor for m, factor in zip(matrices.values(), p, strict=True)]
        self._add_up(q)
        self._q = dict(zip(matrices, q, strict=True))

        def end() -> None:
            end_rest()
            for (name, m), left, right in zip(matrices.items(), p, q, strict=True):
                total = (left @ right.t()).view_as(payload[name])
                self.residual[name] = m.view_as(total) - total / self._wire.replicas
                payload[name].copy_(total)

        return end

    def forget(self) -> None:
        """Drop the factors that warm-start the next ones."""
        self._q = {}

    def _pays(self, t: Tensor) -> bool:
        """Return True if the factors have less than half the values of the tensor."""
        if t.dim() < 2:
            return False
        rows, columns = t.shape[0], t.numel() // t.shape[0]
        return 2 * self._rank * (rows + columns) < rows * columns

    def _start_of(self, name: str, matrix: Tensor) -> Tensor:
        """Return the last Q; the first one is random, but the same on every replica."""
        if name not in self._q:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            self._q[name] = torch.randn(matrix.shape[1], self._rank, generator=generator).to(matrix)
        return self._q[name]

    def _add_up(self, factors: list[Tensor]) -> None:
        together = _flat(factors)
        if together.numel():
            self._wire.add_up(together).wait()
            _copy_back(together, factors)


def _join(payload: Payload, residual: Payload) -> None:
    """Move the residual into the payload."""
    for name in payload:
        left = residual.pop(name, None)
        if left is not None:
            payload[name].add_(left)


def _largest(t: Tensor, share: float) -> Tensor:
    """Return the indices of the largest values in the flattened tensor."""
    count = math.ceil(share * t.numel())
    return torch.topk(t.reshape(-1).abs(), count, sorted=False).indices.to(torch.int32)


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


def _add_sparse(tensors: Iterable[Tensor], received: list[Tensor], counts: list[int]) -> None:
    """Sum the values of all ranks at their indices, in rank order, so that the bits agree."""
    messages: list[Any] = [message.chunk(2) for message in received]
    for number, t in enumerate(tensors):
        span = slice(sum(counts[:number]), sum(counts[: number + 1]))
        total = torch.zeros(t.numel(), dtype=t.dtype, device=t.device)
        for values, places in messages:
            total.index_add_(0, places[span], values[span].view(t.dtype))
        t.copy_(total.view_as(t))
