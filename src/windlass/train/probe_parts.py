"""Measures the parts of which a training step consists: products, attention, streams, updates, exchanges.

All processes of a setting measure the same at the same time, so what they take from each other (memory
bandwidth, caches, clock rate) is in the figures. A figure is the mean of the quickest quarter of the tries,
as it is of the steps that predictions are held against: noise only ever slows work down, but the very
quickest try is luck.

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

from windlass.plan.local.profile import Attention, Exchange, Product, Stream, Update, quickest_quarter

TOKENS = (64, 512, 4096)
FEATURES = (64, 256, 1024)
WORDS = 8192
LENGTHS = (64, 256, 1024)
STREAMS = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
UPDATED = (1 << 16, 1 << 20, 1 << 24)
EXCHANGED = (1 << 6, 1 << 14, 1 << 18, 1 << 22, 1 << 25)
SHORT_S = 0.002
"""Tries of quicker work are made longer by repeating it, or the clock would be measured."""
LONG_S = 0.2
"""What the tries of one product may take together, of which three are made in any case."""


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure."""

    tries: int
    most_flops: float
    """Products above this are left out: they cost seconds and say what smaller ones said."""
    sizes: int
    """Of the models in probe_blocks.py, the smallest first."""


FULL = Effort(tries=9, most_flops=1e10, sizes=4)
QUICK = Effort(tries=3, most_flops=6e8, sizes=3)


def timed(work: Callable[[], Any], tries: int, *, each: int = 1) -> float:
    """Return the seconds of one call; `each` calls make one try."""
    return timed_in_turn([work], tries, each=each)[0]


def timed_in_turn(works: Sequence[Callable[[], Any]], tries: int, *, each: int = 1) -> list[float]:
    """Return the seconds of one call of each work. They take turns, so that a slow moment meets them all, and
    all processes begin every try together."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(tries):
        for work, found in zip(works, seconds, strict=True):
            together()
            begin = time.perf_counter()
            for _ in range(each):
                work()
            found.append((time.perf_counter() - begin) / each)
    return [quickest_quarter(found) for found in seconds]


def repeated(guess_s: float) -> int:
    """Return how many calls make one try; by a guess, for all processes must come to the same number."""
    return max(1, round(SHORT_S / guess_s))


def together() -> None:
    if dist.is_initialized():
        dist.barrier()


def products(effort: Effort) -> Iterator[Product]:
    """Yield the curve of products: few and many tokens, narrow and wide, and a vocabulary's width."""
    for tokens in TOKENS:
        for inputs in FEATURES:
            for outputs in (*FEATURES, WORDS):
                if 2.0 * tokens * inputs * outputs <= effort.most_flops:
                    yield product(tokens, inputs, outputs, effort.tries)


def product(tokens: int, inputs: int, outputs: int, tries: int) -> Product:
    x_ND, w_FD = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
    y_NF = torch.randn(tokens, outputs)
    guess_s = 2.0 * tokens * inputs * outputs / 5e10 + 3e-6
    each, tries = repeated(guess_s), max(3, min(tries, int(LONG_S / guess_s)))
    return Product(
        tokens=tokens,
        inputs=inputs,
        outputs=outputs,
        forward_s=timed(lambda: F.linear(x_ND, w_FD), tries, each=each),
        inputs_s=timed(lambda: y_NF @ w_FD, tries, each=each),
        weights_s=timed(lambda: y_NF.T @ x_ND, tries, each=each),
    )


def attentions(effort: Effort) -> Iterator[Attention]:
    """Yield attention over short and long sequences; its time is in proportion to the heads."""
    heads, width = 8, 64
    for length in LENGTHS:
        q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
        flow = torch.randn(1, heads, length, width)

        def work(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, y: Any = flow) -> None:
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(y)  # type: ignore[no-untyped-call]

        seconds = timed(work, effort.tries, each=repeated(12.0 * heads * length**2 * width / 2e10 + 1e-4))
        yield Attention(heads=heads, length=length, head_width=width, seconds=seconds)


def streams(effort: Effort) -> Iterator[Stream]:
    for values in STREAMS:
        a, b = torch.randn(values), torch.zeros(values)
        each = repeated(12.0 * values / 1e10 + 2e-6)
        yield Stream(values=values, seconds=timed(partial(a.add_, b), effort.tries, each=each))


def updates(effort: Effort) -> Iterator[Update]:
    """Yield clipping and AdamW as optimize.py builds it, over matrices of an even size."""
    for weights in UPDATED:
        matrices = [torch.nn.Parameter(torch.randn(weights // 4)) for _ in range(4)]
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix) * 1e-3
        optimizer = torch.optim.AdamW(matrices, lr=1e-6, fused=True)
        gradients = [m.grad for m in matrices if m.grad is not None]

        def work(optimizer: Any = optimizer, gradients: Any = gradients) -> None:
            norm = torch.stack([n.square() for n in torch._foreach_norm(gradients)]).sum().sqrt()
            torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
            optimizer.step()

        seconds = timed(work, effort.tries, each=repeated(weights * 1e-9 + 5e-5))
        yield Update(weights=weights, seconds=seconds)


def exchanges(effort: Effort) -> Iterator[Exchange]:
    """Yield collectives by size, where there is anybody to exchange with."""
    if not dist.is_initialized():
        return
    world, rank = dist.get_world_size(), dist.get_rank()
    for size in EXCHANGED:
        part = torch.randn(max(1, size // 4 // world))
        whole = torch.randn(len(part) * world)
        works: dict[Any, Callable[[], Any]] = {
            "sum": partial(dist.all_reduce, whole),
            "gather": partial(dist.all_gather_into_tensor, whole, part),
            "scatter": partial(dist.reduce_scatter_tensor, part, whole),
            "pass": partial(_pass, whole, rank, world),
        }
        for kind, work in works.items():
            seconds = timed(work, effort.tries, each=repeated(size / 5e8 + 1e-4))
            yield Exchange(kind=kind, bytes=whole.nbytes, seconds=seconds)


def _pass(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Hand a tensor on to the next process of a row."""
    if rank + 1 < world and rank % 2 == 0:
        dist.send(tensor, rank + 1)
    elif rank % 2 == 1:
        dist.recv(tensor, rank - 1)
