"""Scenes that several replicas play together, each in a process of its own.

    python replica_scenes.py RANK WORLD MEETING_FILE OUTPUT_FOLDER

Every scene returns tensors by name; tests/train/sync/test_data_parallel.py compares those of all ranks. The
replicas train on a toy problem by plain gradient descent, so that one process can also compute the expected
result of all of them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from windlass.parallel.param_shard import ParamShard, whole
from windlass.spec.sync import Sync
from windlass.train.sync.data_parallel import DataParallel

SHAPES = {"embedding": (300, 256), "up": (96, 64), "down": (64, 96), "norm": (64,)}
RATE = 0.1
Result = dict[str, Tensor]
SCENES: dict[str, Callable[[], Result]] = {}


def scene(play: Callable[[], Result]) -> Callable[[], Result]:
    SCENES[play.__name__] = play
    return play


def start_weights() -> Result:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def slope(name: str, weight: Tensor, rank: int, step: int) -> Tensor:
    """The gradient of one replica: towards a goal of its own, with noise of the step."""
    number = list(SHAPES).index(name)
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
    return 0.1 * weight + torch.randn(weight.shape, generator=generator) * (1 + rank)


class Learner:
    """One replica with its weights."""

    def __init__(self, sync: Sync, weights: Result | None = None, step: int = 0) -> None:
        self.rank = dist.get_rank()
        values = weights or start_weights()
        self.held = {name: nn.Parameter(t.clone()) for name, t in values.items()}
        holdings = [ParamShard(n, SHAPES[n], whole(SHAPES[n]), w, 1) for n, w in self.held.items()]
        self.replicas = DataParallel(holdings, dist.group.WORLD, sync, step)
        self.step = step

    def walk(self, steps: int, second_s: float = 1.0) -> list[int]:
        """Take steps; return those after which everybody was at a sync point."""
        sync_points = []
        for _ in range(steps):
            for name, weight in self.held.items():
                weight.grad = slope(name, weight.detach(), self.rank, self.step)
            self.replicas.after_backward(self.step)
            with torch.no_grad():
                for weight in self.held.values():
                    assert weight.grad is not None
                    weight.sub_(weight.grad, alpha=RATE)
            self.step += 1
            self.replicas.after_update(self.step, self.step * second_s)
            if self.replicas.at_sync_point(self.step):
                sync_points.append(self.step)
        return sync_points

    @property
    def weights(self) -> Result:
        return {name: w.detach().clone() for name, w in self.held.items()}


def _summed(sync: Sync, steps: int = 1) -> Result:
    """Add up the same gradients again and again; return the average of the sums, and the bytes."""
    learner = Learner(sync)
    total = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for _ in range(steps):
        for name, weight in learner.held.items():
            weight.grad = slope(name, torch.zeros(SHAPES[name]), learner.rank, 0)
        learner.replicas.after_backward(0)
        for name, weight in learner.held.items():
            assert weight.grad is not None
            total[name] += weight.grad / steps
    return {**total, "bytes": torch.tensor(learner.replicas.bytes_sent)}


@scene
def every_step() -> Result:
    return _summed(Sync())


@scene
def strided_gradients() -> Result:
    """Gradients that do not lie in memory in one piece are added up as well."""
    learner = Learner(Sync())
    for name, weight in learner.held.items():
        values = slope(name, torch.zeros(SHAPES[name]), learner.rank, 0)
        weight.grad = values.t().contiguous().t() if values.dim() == 2 else values
    learner.replicas.after_backward(0)
    return {name: w.grad.contiguous() for name, w in learner.held.items() if w.grad is not None}


@scene
def bfloat16() -> Result:
    return _summed(Sync(compress="bfloat16"))


@scene
def top_k() -> Result:
    return _summed(Sync(compress="top-k", keep_share=0.05))


@scene
def top_k_for_long() -> Result:
    return _summed(Sync(compress="top-k", keep_share=0.05), steps=200)


@scene
def powersgd() -> Result:
    return _summed(Sync(compress="powersgd", rank=4))


@scene
def powersgd_for_long() -> Result:
    return _summed(Sync(compress="powersgd", rank=4), steps=200)


@scene
def powersgd_of_zeros() -> Result:
    learner = Learner(Sync(compress="powersgd", rank=2))
    for _ in range(2):
        for weight in learner.held.values():
            weight.grad = torch.zeros_like(weight)
        learner.replicas.after_backward(0)
    return {name: w.grad for name, w in learner.held.items() if w.grad is not None}


def _walked(sync: Sync, steps: int) -> Result:
    learner = Learner(sync)
    sync_points = learner.walk(steps)
    told = {"bytes": torch.tensor(learner.replicas.bytes_sent), "sync_points": torch.tensor(sync_points)}
    return {**learner.weights, **told}


@scene
def local() -> Result:
    return _walked(Sync(policy="local", every=3), 6)


@scene
def diloco_as_averaging() -> Result:
    return _walked(Sync(policy="diloco", every=3, outer_rate=1, outer_momentum=0), 6)


@scene
def diloco() -> Result:
    return _walked(Sync(policy="diloco", every=3), 9)


@scene
def diloco_bfloat16() -> Result:
    return _walked(Sync(policy="diloco", every=3, compress="bfloat16"), 9)


@scene
def diloco_top_k() -> Result:
    return _walked(Sync(policy="diloco", every=3, compress="top-k", keep_share=0.1), 9)


@scene
def delayed() -> Result:
    return _walked(Sync(policy="diloco", every=4, delay=2), 7)


@scene
def fragments() -> Result:
    return _walked(Sync(policy="diloco", every=4, fragments=2), 6)


@scene
def streaming_that_agrees() -> Result:
    """Nothing is equal by itself, but agreement can be asked for at any step."""
    learner = Learner(Sync(policy="diloco", every=6, fragments=3, delay=3, compress="bfloat16"))
    sync_points = learner.walk(9)
    learner.replicas.average_now()
    at_sync_point = learner.replicas.at_sync_point(9)
    return {
        **learner.weights,
        "sync_points": torch.tensor(sync_points),
        "agreed": torch.tensor(at_sync_point),
    }


@scene
def more_fragments_than_weights() -> Result:
    learner = Learner(Sync(policy="diloco", every=8, fragments=8, compress="top-k"))
    learner.walk(16)
    learner.replicas.average_now()
    return learner.weights


@scene
def timed() -> Result:
    """Replicas of unequal speed: the slowest takes 2 s a step, and 10 s are asked for."""
    learner = Learner(Sync(policy="timed", seconds=10))
    sync_points = learner.walk(17, second_s=2.0 if learner.rank else 1.0)
    return {**learner.weights, "sync_points": torch.tensor(sync_points)}


@scene
def changed() -> Result:
    """From every step to DiLoCo in mid-run, with another period, then back, compressed."""
    learner = Learner(Sync())
    sync_points = learner.walk(3)
    for sync, steps in (
        (Sync(policy="diloco", every=4), 6),
        (Sync(policy="diloco", every=3), 4),
        (Sync(policy="timed", seconds=3), 4),
        (Sync(compress="top-k", keep_share=0.1), 2),
        (Sync(), 1),
    ):
        learner.replicas.change(sync)
        assert learner.replicas.at_sync_point(learner.step)
        sync_points += learner.walk(steps)
    return {**learner.weights, "sync_points": torch.tensor(sync_points)}


@scene
def changed_to_the_same() -> Result:
    """At a sync point, DiLoCo to DiLoCo: momentum and anchor go on as if nothing had happened."""
    learner = Learner(Sync(policy="diloco", every=3))
    learner.walk(6)
    learner.replicas.change(Sync(policy="diloco", every=3, fragments=1))
    learner.walk(3)
    return learner.weights


@scene
def flushed() -> Result:
    """What top-k left out travels with the next gradients after compression ends."""
    learner = Learner(Sync(compress="top-k", keep_share=0.05))
    sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(2):
        for name, weight in learner.held.items():
            weight.grad = slope(name, torch.zeros(SHAPES[name]), learner.rank, step)
        learner.replicas.after_backward(step)
        for name, weight in learner.held.items():
            assert weight.grad is not None
            sums[name] += weight.grad
        learner.replicas.change(Sync())
    return sums


def _resumed(sync: Sync) -> Result:
    """Go on after saving, and beside it resume from what was saved; return both ends."""
    learner = Learner(sync)
    learner.walk(5)
    state = {k: {n: t.clone() for n, t in ts.items()} for k, ts in learner.replicas.state().items()}
    saved, step = learner.weights, learner.step
    learner.walk(7)
    again = Learner(sync, saved, step)
    again.replicas.load_state(state, step)
    again.walk(7)
    ends = {"on": learner.weights, "again": again.weights}
    return {f"{who}.{name}": t for who, weights in ends.items() for name, t in weights.items()}


@scene
def resumed_diloco() -> Result:
    return _resumed(Sync(policy="diloco", every=3))


@scene
def resumed_streaming() -> Result:
    return _resumed(Sync(policy="diloco", every=4, fragments=2, delay=1))


@scene
def resumed_diloco_top_k() -> Result:
    return _resumed(Sync(policy="diloco", every=3, compress="top-k", keep_share=0.1))


@scene
def resumed_top_k() -> Result:
    return _resumed(Sync(compress="top-k", keep_share=0.1))


@scene
def resumed_powersgd() -> Result:
    return _resumed(Sync(compress="powersgd"))


def main(rank: int, world: int, meeting: str, output: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    for name, play in SCENES.items():
        tensors = {key: t.contiguous().clone() for key, t in play().items()}
        save_file(tensors, output / f"{name}.{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
