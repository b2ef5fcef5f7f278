"""Measures the parts of a training step: matrix products, attention, streams, optimizer updates, collectives.

All processes measure the same operation at the same time, so contention (memory bandwidth, caches, clock
rate) is in the figures. A figure is the mean of the quickest quarter of the tries, as in the measured steps
that predictions are compared with: noise only slows work down, but the single quickest try is luck.
Operations that are compared take turns, because noise lasts for seconds and must not hit all tries of one
operation and none of another.

Legend: N tokens, D inputs, F outputs, B batch, H heads, T time, C width of a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from windlass.plan.local.kernel_costs import LOSS_CHUNK_TOKENS
from windlass.plan.local.profile import (
    AttentionTime,
    CollectiveTime,
    Product,
    StreamTime,
    UpdateTime,
    quickest_quarter,
)

TOKENS = (64, 512, 2048)
FEATURES = (64, 256, 1024)
WORDS = 8192
LENGTHS = (64, 256, 1024)
STREAMS = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
UPDATED = (1 << 16, 1 << 20, 1 << 24)
VALUE_BYTES = 4
EXCHANGED = (1 << 6, 1 << 14, 1 << 18, 1 << 22, 1 << 25)
SHORT_S = 0.002
"""Work quicker than this is repeated within a try; otherwise the clock would be measured."""


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure."""

    tries: int
    max_flops: float
    """Larger products are left out: they take seconds and add no information."""
    sizes: int
    """Number of models of block_times.py to measure, the smallest first."""


FULL = Effort(tries=3, max_flops=1e10, sizes=5)
QUICK = Effort(tries=1, max_flops=1e8, sizes=2)


@dataclass(frozen=True)
class TimedWork:
    """Something to be timed."""

    do: Callable[[], Any]
    guess_s: float = SHORT_S
    """Estimated seconds of a call. Not measured: all processes must use the same number of calls."""

    @property
    def calls(self) -> int:
        """Number of calls in one try."""
        return max(1, round(SHORT_S / self.guess_s))


def timed(works: Sequence[TimedWork], tries: int) -> list[float]:
    """Return the seconds of one call of each work. The works take turns; a barrier precedes every try."""
    for work in works:
        work.do()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(tries):
        for work, found in zip(works, seconds, strict=True):
            together()
            begin = time.perf_counter()
            for _ in range(work.calls):
                work.do()
            found.append((time.perf_counter() - begin) / work.calls)
    return [quickest_quarter(found) for found in seconds]


def together() -> None:
    if dist.is_initialized():
        dist.barrier()


def products(effort: Effort) -> Iterator[Product]:
    """Yield the times of products: few and many tokens, narrow and wide, and the width of a vocabulary."""
    sizes = [
        (tokens, inputs, outputs)
        for tokens in TOKENS
        for inputs in FEATURES
        for outputs in (*FEATURES, WORDS)
        if 2.0 * tokens * inputs * outputs <= effort.max_flops
        if outputs < WORDS or tokens <= LOSS_CHUNK_TOKENS
    ]
    pools = [torch.randn(max(n * d for n, d, _ in sizes)), torch.randn(max(d * f for _, d, f in sizes))]
    pools.append(torch.randn(max(n * f for n, _, f in sizes)))
    times = iter(timed([work for size in sizes for work in _product(size, pools)], effort.tries))
    for tokens, inputs, outputs in sizes:
        yield Product(
            tokens=tokens,
            inputs=inputs,
            outputs=outputs,
            forward_s=next(times),
            inputs_s=next(times),
            weights_s=next(times),
        )


def _product(
    size: tuple[int, int, int], pools: Sequence[torch.Tensor]
) -> tuple[TimedWork, TimedWork, TimedWork]:
    """Return a product and those of its gradients, on memory that all sizes share."""
    tokens, inputs, outputs = size
    x_ND = pools[0][: tokens * inputs].view(tokens, inputs)
    w_FD = pools[1][: outputs * inputs].view(outputs, inputs)
    y_NF = pools[2][: tokens * outputs].view(tokens, outputs)
    guess_s = 2.0 * tokens * inputs * outputs / 5e10 + 3e-6
    return (
        TimedWork(lambda: F.linear(x_ND, w_FD), guess_s),
        TimedWork(lambda: y_NF @ w_FD, guess_s),
        TimedWork(lambda: y_NF.T @ x_ND, guess_s),
    )


def attentions(effort: Effort) -> Iterator[AttentionTime]:
    """Yield attention over short and long sequences; its time is in proportion to the heads."""
    heads, width = 8, 64
    works = [_attention(heads, length, width) for length in LENGTHS]
    for length, seconds in zip(LENGTHS, timed(works, effort.tries), strict=True):
        yield AttentionTime(heads=heads, length=length, head_width=width, seconds=seconds)


def _attention(heads: int, length: int, width: int) -> TimedWork:
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    flow = torch.randn(1, heads, length, width)

    def work() -> None:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(flow)  # type: ignore[no-untyped-call]

    return TimedWork(work, 12.0 * heads * length**2 * width / 2e10 + 1e-4)


def streams(effort: Effort) -> Iterator[StreamTime]:
    works = [
        TimedWork(partial(torch.randn(values).add_, torch.zeros(values)), 12.0 * values / 1e10 + 2e-6)
        for values in STREAMS
    ]
    for values, seconds in zip(STREAMS, timed(works, effort.tries), strict=True):
        yield StreamTime(values=values, seconds=seconds)


def updates(effort: Effort) -> Iterator[UpdateTime]:
    """Yield clipping and AdamW as optimize.py builds it, over matrices of an even size."""
    works = [_update(weights) for weights in UPDATED]
    for weights, seconds in zip(UPDATED, timed(works, effort.tries), strict=True):
        yield UpdateTime(weights=weights, seconds=seconds)


def _update(weights: int) -> TimedWork:
    matrices = [torch.nn.Parameter(torch.randn(weights // 4)) for _ in range(4)]
    gradients = [torch.randn_like(matrix) * 1e-3 for matrix in matrices]
    for matrix, gradient in zip(matrices, gradients, strict=True):
        matrix.grad = gradient
    optimizer = torch.optim.AdamW(matrices, lr=1e-6, fused=True)

    def work() -> None:
        norm = torch.stack([n.square() for n in torch._foreach_norm(gradients)]).sum().sqrt()
        torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()

    return TimedWork(work, weights * 1e-9 + 5e-5)


def exchanges(effort: Effort) -> Iterator[CollectiveTime]:
    """Yield the times of collectives by size; nothing for a single process."""
    if not dist.is_initialized():
        return
    works = [(size, kind, work) for size in EXCHANGED for kind, work in _exchanges(size).items()]
    times = timed([TimedWork(work, size / 5e8 + 1e-4) for size, _, work in works], effort.tries)
    for (size, kind, _), seconds in zip(works, times, strict=True):
        yield CollectiveTime(kind=kind, bytes=size, seconds=seconds)


def _exchanges(size: int) -> dict[Any, Callable[[], Any]]:
    world, rank = dist.get_world_size(), dist.get_rank()
    part = torch.randn(size // VALUE_BYTES // world)
    whole = torch.randn(len(part) * world)
    return {
        "sum": partial(dist.all_reduce, whole),
        "gather": partial(dist.all_gather_into_tensor, whole, part),
        "scatter": partial(dist.reduce_scatter_tensor, part, whole),
        "pass": partial(_pass, whole, rank, world),
    }


def _pass(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Send a tensor from each even rank to the next rank."""
    if rank + 1 < world and rank % 2 == 0:
        dist.send(tensor, rank + 1)
    elif rank % 2 == 1:
        dist.recv(tensor, rank - 1)
