"""Measures what the trainer itself takes for a micro-batch of small models, and the memory it holds.

The parts of a step (probe_parts.py) do not add up to the whole: autograd, the allocator and torch's
bookkeeping for divided tensors come on top, most where tensors are small. So whole passes are measured too,
through the same Strategy that trains, at a few sizes; plan/local/step.py draws a curve from parts to wholes.
Models of two depths tell a layer from what there is once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from windlass.parallel.crew import Alone, Crew, Together
from windlass.parallel.cut import cut_model
from windlass.parallel.grid import Grid
from windlass.parallel.strategy import Batch, Strategy
from windlass.plan.local.machine import MachineFacts
from windlass.plan.local.profile import Block, Division, Held
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job, Train
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.spec.shape import LlamaShape
from windlass.train.optimize import build_optimizer
from windlass.train.probe_parts import Effort, timed, timed_in_turn

SHALLOW, DEEP = 1, 3
LEAST = 0.05
"""Of a pass, which each of its two shares has at least: noise may hide one, but neither is nothing."""
HANDED = 8
"""Micro-batches of the pipeline that is measured."""
STEPS = 3
"""After which the memory of a process no longer grows."""
HEAD_WIDTH = 64
NOWHERE = CorpusFacts(path="", digest="", vocabulary=1, train_tokens=1 << 40, validation_tokens=1 << 20)
ANYTHING = MachineFacts(cores=1, memory_bytes=1 << 50, peak_flops=1e11, has_compiler=False)


@dataclass(frozen=True)
class Size:
    """A small model and its micro-batch."""

    width: int
    vocabulary: int
    context: int
    sequences: int
    tries: int
    """Of these at most."""

    def shape(self, layers: int, world: int) -> LlamaShape:
        heads = max(self.width // HEAD_WIDTH, world)
        return LlamaShape(
            vocabulary=self.vocabulary,
            context=self.context,
            layers=layers,
            width=self.width,
            heads=heads,
            kv_heads=heads,
            ffn_width=3 * self.width,
            tied=True,
        )


TINY = Size(width=32, vocabulary=128, context=16, sequences=1, tries=40)
SIZES = (
    TINY,
    Size(width=128, vocabulary=1024, context=128, sequences=2, tries=12),
    Size(width=256, vocabulary=4096, context=256, sequences=2, tries=8),
    Size(width=512, vocabulary=8192, context=256, sequences=2, tries=4),
)
HELD = Size(width=384, vocabulary=8192, context=256, sequences=8, tries=1)
HELD_LAYERS = 6


def blocks(effort: Effort, division: Division) -> Iterator[Block]:
    """Yield whole passes of models that all processes divide so."""
    world = _world()
    layout = {"plain": Layout(dp=world), "sharded": Layout(sharded=world), "tp": Layout(tp=world)}[division]
    grid = _grid(layout)
    for size in SIZES[: effort.sizes]:
        yield block(size, division, grid, min(size.tries, 4 * effort.tries))


def block(size: Size, division: Division, grid: Grid, tries: int) -> Block:
    shallow, deep = timed_in_turn([_pass(size, layers, grid) for layers in (SHALLOW, DEEP)], tries)
    layer_s = max(LEAST * deep, deep - shallow) / (DEEP - SHALLOW)
    shape = size.shape(1, _world())
    return Block(
        division=division,
        width=size.width,
        heads=shape.heads,
        ffn_width=shape.ffn_width,
        vocabulary=size.vocabulary,
        context=size.context,
        sequences=size.sequences,
        layer_s=layer_s,
        ends_s=max(LEAST * shallow, shallow - SHALLOW * layer_s),
    )


def handing_s(effort: Effort, plain: Block) -> float:
    """Return what a pipeline adds to a tiny stage, for each micro-batch.

    By 1F1B with p stages a step takes as long as m + p - 1 micro-batches in one of them (Narayanan et al.
    2021, arXiv:2104.04473, section 2.2.1).
    """
    if not dist.is_initialized():
        return 0.0
    world = _world()
    layout = Layout(pp=world)
    run = _run(TINY.shape(world, world), layout, TINY.sequences, micro_batches=HANDED)
    strategy = _strategy(run, _grid(layout))
    batches = [_batch(run, seed) for seed in range(HANDED)]
    step_s = timed(partial(_learn, strategy, batches), min(TINY.tries, 4 * effort.tries))
    return max(0.0, step_s / (HANDED + world - 1) - plain.layer_s - plain.ends_s / world)


def held(size: Size, layers: int) -> Held:
    """Take a few whole steps, and tell the most memory that this process had so far."""
    run = _run(size.shape(layers, _world()), Layout(dp=_world()), size.sequences)
    strategy = _strategy(run, _grid(run.layout))
    optimizer = build_optimizer(strategy.held.holdings, run)
    for _ in range(STEPS):
        strategy.learn([_batch(run, 0)], 1)
        strategy.held.collect()
        strategy.held.clip(1.0)
        optimizer.step()
        strategy.held.clear()
    shape = run.shape
    return Held(
        processes=_world(),
        width=shape.width,
        layers=layers,
        heads=shape.heads,
        ffn_width=shape.ffn_width,
        vocabulary=shape.vocabulary,
        context=shape.context,
        sequences=size.sequences,
        peak_bytes=peak_bytes(),
    )


def peak_bytes() -> int:
    """Return the most resident memory that this process had, as the kernel counts it (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("every Linux process has a VmHWM")


def _pass(size: Size, layers: int, grid: Grid) -> Callable[[], None]:
    run = _run(size.shape(layers, _world()), grid.layout, size.sequences)
    strategy, batches = _strategy(run, grid), [_batch(run, 0)]
    return partial(_learn, strategy, batches)


def _learn(strategy: Strategy, batches: list[Batch]) -> None:
    strategy.learn(batches, 1)
    strategy.held.collect()
    strategy.held.clear()


def _grid(layout: Layout) -> Grid:
    crew: Crew = Together() if dist.is_initialized() else Alone()
    return Grid(layout, torch.device("cpu"), crew)


def _strategy(run: Run, grid: Grid) -> Strategy:
    return Strategy(run, grid, cut_model(run.shape, run.layout))


def _run(shape: LlamaShape, layout: Layout, sequences: int, *, micro_batches: int = 1) -> Run:
    batch = sequences * micro_batches * layout.replicas
    train = Train(steps=1, batch_sequences=batch, micro_batch_sequences=sequences)
    return plan_run(Job(name="probe", train=train, layout=layout), NOWHERE, ANYTHING, start_shape=shape)


def _batch(run: Run, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    size = (run.micro_batch_sequences, run.shape.context)
    tokens = torch.randint(run.shape.vocabulary, size, generator=generator)
    return tokens, tokens.roll(-1, 1)


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
