"""Measures the trainer's time for a micro-batch of small models, and the memory it takes.

The parts of a step (kernel_times.py) do not add up to the whole: autograd, the allocator and torch's
bookkeeping for sharded tensors come on top, most where tensors are small. So whole passes are measured too,
through the Strategy that trains, at a few sizes; plan/local/overhead.py derives the overhead from them.
Models of two depths separate the cost of a layer from fixed costs. Sharded models compute little relative to
what they communicate, so that the cost of sharding stands out from the noise of computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.partition import cut_model
from windlass.parallel.process_group import DistributedGroup, ProcessGroup, SingleProcess
from windlass.parallel.strategy import Batch, Strategy
from windlass.plan.local.machine import MachineFacts
from windlass.plan.local.profile import DEEP, SHALLOW, BlockTime, Division, ResidentMemory
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job, Train
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.spec.shape import DecoderShape
from windlass.train.optimize import build_optimizer
from windlass.train.probe.kernel_times import Effort, TimedWork, timed

HANDED = 8
"""Micro-batches of the measured pipeline."""
HANDED_TRIES = 4
STEPS = 3
"""After which the memory of a process no longer grows."""
HEAD_WIDTH = 64
NOWHERE = CorpusFacts(path="", digest="", vocabulary=1, train_tokens=1 << 40, validation_tokens=1 << 20)
ANYTHING = MachineFacts(cores=1, memory_bytes=1 << 50, peak_flops=1e11, has_compiler=False)


@dataclass(frozen=True)
class ProbeModel:
    """A small model and its micro-batch."""

    width: int
    vocabulary: int
    context: int
    sequences: int

    def shape(self, layers: int, world: int) -> DecoderShape:
        heads = max(self.width // HEAD_WIDTH, world)
        return DecoderShape(
            vocabulary=self.vocabulary,
            context=self.context,
            layers=layers,
            width=self.width,
            heads=heads,
            kv_heads=heads,
            ffn_width=3 * self.width,
            tied=True,
        )


TINY = ProbeModel(width=32, vocabulary=128, context=16, sequences=1)
SIZES: dict[Division, tuple[ProbeModel, ...]] = {
    "plain": (
        TINY,
        ProbeModel(width=128, vocabulary=1024, context=128, sequences=4),
        ProbeModel(width=256, vocabulary=2048, context=256, sequences=4),
        ProbeModel(width=384, vocabulary=4096, context=256, sequences=2),
        ProbeModel(width=512, vocabulary=8192, context=256, sequences=2),
    ),
    "sharded": (
        TINY,
        ProbeModel(width=128, vocabulary=2048, context=32, sequences=1),
        ProbeModel(width=256, vocabulary=4096, context=32, sequences=1),
        ProbeModel(width=512, vocabulary=8192, context=32, sequences=1),
    ),
    "tp": (
        TINY,
        ProbeModel(width=64, vocabulary=128, context=128, sequences=4),
        ProbeModel(width=64, vocabulary=128, context=128, sequences=16),
        ProbeModel(width=128, vocabulary=128, context=128, sequences=32),
    ),
}
HELD = ProbeModel(width=384, vocabulary=8192, context=256, sequences=8)
HELD_LAYERS = 6


def blocks(effort: Effort, division: Division) -> Iterator[BlockTime]:
    """Yield the times of whole passes of models divided among all processes by `division`."""
    world = _world()
    layout = {"plain": Layout(dp=world), "sharded": Layout(sharded=world), "tp": Layout(tp=world)}[division]
    grid, sizes = _grid(layout), SIZES[division][: effort.sizes]
    works = [_pass(size, layers, grid) for size in sizes for layers in (SHALLOW, DEEP)]
    times = iter(timed(works, effort.tries))
    for size in sizes:
        yield _block(size, division, next(times), next(times))


def _block(size: ProbeModel, division: Division, shallow_s: float, deep_s: float) -> BlockTime:
    shape = size.shape(SHALLOW, _world())
    return BlockTime(
        division=division,
        width=size.width,
        heads=shape.heads,
        ffn_width=shape.ffn_width,
        vocabulary=size.vocabulary,
        context=size.context,
        sequences=size.sequences,
        shallow_s=shallow_s,
        deep_s=deep_s,
    )


def handing_s(effort: Effort, plain: BlockTime) -> float:
    """Return the seconds per micro-batch that a pipeline adds to a tiny stage.

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
    work = TimedWork(partial(_learn, strategy, batches))
    step_s = timed([work], HANDED_TRIES * effort.tries)[0]
    return max(0.0, step_s / (HANDED + world - 1) - plain.layer_s - plain.ends_s / world)


def held(size: ProbeModel, layers: int) -> ResidentMemory:
    """Do a few whole steps, and return the peak memory of this process."""
    run = _run(size.shape(layers, _world()), Layout(dp=_world()), size.sequences)
    strategy = _strategy(run, _grid(run.layout))
    optimizer = build_optimizer(strategy.params.holdings, run)
    for _ in range(STEPS):
        strategy.forward_backward([_batch(run, 0)], 1)
        strategy.params.reduce_grads()
        strategy.params.clip(1.0)
        optimizer.step()
        strategy.params.clear()
    shape = run.network
    return ResidentMemory(
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
    """Return the peak resident memory of this process, as the kernel counts it (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("every Linux process has a VmHWM")


def _pass(size: ProbeModel, layers: int, grid: Mesh) -> TimedWork:
    run = _run(size.shape(layers, _world()), grid.layout, size.sequences)
    strategy, batches = _strategy(run, grid), [_batch(run, 0)]
    return TimedWork(partial(_learn, strategy, batches))


def _learn(strategy: Strategy, batches: list[Batch]) -> None:
    strategy.forward_backward(batches, 1)
    strategy.params.reduce_grads()
    strategy.params.clear()


def _grid(layout: Layout) -> Mesh:
    group: ProcessGroup = DistributedGroup() if dist.is_initialized() else SingleProcess()
    return Mesh(layout, torch.device("cpu"), group)


def _strategy(run: Run, grid: Mesh) -> Strategy:
    return Strategy(run, grid, cut_model(run.network, run.layout))


def _run(shape: DecoderShape, layout: Layout, sequences: int, *, micro_batches: int = 1) -> Run:
    batch = sequences * micro_batches * layout.replicas
    train = Train(steps=1, batch_sequences=batch, micro_batch_sequences=sequences)
    return plan_run(Job(name="probe", train=train, layout=layout), NOWHERE, ANYTHING, start_shape=shape)


def _batch(run: Run, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    size = (run.micro_batch_sequences, run.network.context)
    tokens = torch.randint(run.network.vocabulary, size, generator=generator)
    return tokens, tokens.roll(-1, 1)


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
