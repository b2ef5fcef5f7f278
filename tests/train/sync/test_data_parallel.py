"""The exchange between replicas: two and three real processes play the scenes of replica_scenes.py.

What they should come to is computed here, in one process.
"""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from windlass.parallel.param_shard import ParamShard, whole
from windlass.spec.sync import Sync
from windlass.train.sync.data_parallel import KEPT_SHARE, DataParallel

SCENES_FILE = Path(__file__).with_name("replica_scenes.py")
Weights = dict[str, Tensor]


def _load_scenes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replica_scenes", SCENES_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scenes = _load_scenes()
NAMES = list(scenes.SHAPES)
VALUES = sum(math.prod(shape) for shape in scenes.SHAPES.values())


class Played:
    """What the replicas of one world came to."""

    def __init__(self, world: int, folder: Path) -> None:
        self.world, self._folder = world, folder

    def ranks(self, scene: str) -> list[Weights]:
        return [load_file(self._folder / f"{scene}.{rank}.safetensors") for rank in range(self.world)]

    def first(self, scene: str) -> Weights:
        return self.ranks(scene)[0]


@pytest.fixture(scope="module", params=[2, 3])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    world, folder = request.param, tmp_path_factory.mktemp("scenes")
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCENES_FILE), str(rank), str(world), str(folder / "meeting"), str(folder)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        complaints = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(complaints)
    return Played(world, folder)


def true_sums(world: int, step: int = 0) -> Weights:
    zeros = {name: torch.zeros(shape) for name, shape in scenes.SHAPES.items()}
    return {n: sum((scenes.slope(n, z, r, step) for r in range(world)), start=z) for n, z in zeros.items()}


def walk_alone(weights: Weights, rank: int, steps: range) -> Weights:
    """Do what one replica does between exchanges."""
    for step in steps:
        weights = {n: w - scenes.RATE * scenes.slope(n, w, rank, step) for n, w in weights.items()}
    return weights


def mean(many: list[Weights]) -> Weights:
    return {name: torch.stack([weights[name] for weights in many]).mean(0) for name in NAMES}


def outer_walk(world: int, periods: int, every: int, rate: float, momentum: float) -> Weights:
    """DiLoCo as its paper writes it, with torch's own SGD as the outer optimizer."""
    anchor = {name: nn.Parameter(t) for name, t in scenes.start_weights().items()}
    outer = torch.optim.SGD(anchor.values(), lr=rate, momentum=momentum, nesterov=momentum > 0)
    for period in range(periods):
        start = {name: t.detach().clone() for name, t in anchor.items()}
        steps = range(period * every, (period + 1) * every)
        ends = mean([walk_alone(start, rank, steps) for rank in range(world)])
        for name, t in anchor.items():
            t.grad = start[name] - ends[name]
        outer.step()
    return {name: t.detach() for name, t in anchor.items()}


def assert_close(found: Weights, wanted: Weights, *, within: float = 1e-5) -> None:
    for name in NAMES:
        torch.testing.assert_close(found[name], wanted[name], rtol=within, atol=within)


def relative_error(found: Weights, wanted: Weights) -> float:
    missed = sum(float((found[n] - wanted[n]).square().sum()) for n in NAMES)
    return math.sqrt(missed / sum(float(wanted[n].square().sum()) for n in NAMES))


def ring_bytes(world: int, values: int, width: int = 4) -> int:
    return 2 * (world - 1) * values * width // world


def test_a_single_replica_has_no_peers() -> None:
    weight = nn.Parameter(torch.ones(3))
    alone = DataParallel([ParamShard("w", (3,), whole((3,)), weight, 1)], None, Sync(policy="diloco"))
    weight.grad = torch.full((3,), 2.0)
    alone.after_backward(0)
    alone.after_update(1, 1.0)
    alone.average_now()
    assert alone.at_sync_point(1)
    assert alone.has_sync_points
    assert alone.bytes_sent == 0
    assert alone.state() == {}
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    [
        "every_step", "bfloat16", "top_k", "top_k_for_long", "powersgd", "powersgd_for_long", "local",
        "diloco", "diloco_bfloat16", "diloco_top_k", "streaming_that_agrees", "more_fragments_than_weights",
        "timed", "changed",
    ],
)  # fmt: skip
def test_after_an_exchange_all_replicas_hold_the_same_bits(played: Played, scene: str) -> None:
    first, *others = played.ranks(scene)
    for other in others:
        for name, values in first.items():
            assert torch.equal(values, other[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["every_step", "strided_gradients"])
def test_every_step_gives_the_gradient_of_the_whole_batch(played: Played, scene: str) -> None:
    assert_close(played.first(scene), true_sums(played.world), within=1e-6)


@pytest.mark.slow
def test_halves_are_right_to_two_digits(played: Played) -> None:
    assert 0 < relative_error(played.first("bfloat16"), true_sums(played.world)) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["top_k", "powersgd"])
def test_what_compression_leaves_out_comes_later(played: Played, scene: str) -> None:
    truth = true_sums(played.world)
    once = relative_error(played.first(scene), truth)
    on_average = relative_error(played.first(f"{scene}_for_long"), truth)
    assert once > 0.7
    assert on_average < 0.25


@pytest.mark.slow
def test_gradients_of_zeros_have_factors_too(played: Played) -> None:
    assert all(not t.any() for t in played.first("powersgd_of_zeros").values())


@pytest.mark.slow
def test_bytes_are_counted_as_the_rule_says(played: Played) -> None:
    world, sent = played.world, {name: int(played.first(name)["bytes"]) for name in SENT_BY_RULE}
    assert sent == {name: rule(world) for name, rule in SENT_BY_RULE.items()}


def _factors(shape: tuple[int, ...]) -> int:
    """Values that PowerSGD of rank 4 sends of a weight: vectors travel whole."""
    return 4 * sum(shape) if len(shape) == 2 else shape[0]


def _thinned(n: int, share: float, times: int = 1) -> int:
    """Bytes under top-k: values and places of the matrices, gathered; the vector travels whole."""
    kept = sum(math.ceil(math.prod(shape) * share) for shape in SHAPES if len(shape) == 2)
    return times * (n - 1) * 8 * kept + ring_bytes(n, times * 64)


SHAPES = list(scenes.SHAPES.values())
SENT_BY_RULE = {
    "every_step": lambda n: ring_bytes(n, VALUES),
    "bfloat16": lambda n: ring_bytes(n, VALUES, 2),
    "powersgd": lambda n: ring_bytes(n, sum(map(_factors, SHAPES))),
    "top_k": lambda n: _thinned(n, 0.05),
    "local": lambda n: ring_bytes(n, 2 * VALUES),
    "diloco_bfloat16": lambda n: ring_bytes(n, 3 * VALUES, 2),
    "diloco_top_k": lambda n: _thinned(n, 0.1, times=3),
}


@pytest.mark.slow
def test_local_steps_end_in_the_average_of_the_weights(played: Played) -> None:
    assert_close(played.first("local"), outer_walk(played.world, 2, 3, rate=1.0, momentum=0.0))
    assert played.first("local")["sync_points"].tolist() == [3, 6]


@pytest.mark.slow
def test_diloco_of_rate_one_without_momentum_is_averaging_bit_by_bit(played: Played) -> None:
    averaged, outer = played.first("local"), played.first("diloco_as_averaging")
    assert all(torch.equal(averaged[name], outer[name]) for name in averaged)


@pytest.mark.slow
def test_diloco_takes_the_outer_steps_of_its_paper(played: Played) -> None:
    assert_close(played.first("diloco"), outer_walk(played.world, 3, 3, rate=0.7, momentum=0.9))


@pytest.mark.slow
def test_diloco_with_halves_stays_close_to_diloco(played: Played) -> None:
    assert 0 < relative_error(played.first("diloco_bfloat16"), played.first("diloco")) < 0.01


@pytest.mark.slow
def test_a_delayed_exchange_meets_the_steps_made_meanwhile_half_way(played: Played) -> None:
    start = scenes.start_weights()
    sent = [walk_alone(start, rank, range(4)) for rank in range(played.world)]
    rate, momentum = 0.7, 0.9
    average = mean(sent)
    anchor = {n: start[n] - rate * (1 + momentum) * (start[n] - average[n]) for n in NAMES}
    for rank, found in enumerate(played.ranks("delayed")):
        meanwhile = walk_alone(sent[rank], rank, range(4, 6))
        merged = {n: KEPT_SHARE * meanwhile[n] + (1 - KEPT_SHARE) * anchor[n] for n in NAMES}
        assert_close(found, walk_alone(merged, rank, range(6, 7)))


@pytest.mark.slow
def test_only_the_fragments_that_were_exchanged_are_equal(played: Played) -> None:
    first, second = played.ranks("fragments")[:2]
    equal = {name for name in NAMES if torch.equal(first[name], second[name])}
    assert equal == {"embedding"}  # the first of two; the others, together the second, were due at step 4


@pytest.mark.slow
def test_streaming_comes_to_a_sync_point_only_when_requested(played: Played) -> None:
    result = played.first("streaming_that_agrees")
    assert result["sync_points"].numel() == 0
    assert result["agreed"]


@pytest.mark.slow
def test_replicas_of_unequal_speed_meet_as_often_as_the_slowest_can(played: Played) -> None:
    assert played.first("timed")["sync_points"].tolist() == [1, 2, 7, 12, 17]


@pytest.mark.slow
def test_a_policy_can_be_changed_at_any_step(played: Played) -> None:
    sync_points = played.first("changed")["sync_points"].tolist()
    every_step, diloco_4, diloco_3 = [1, 2, 3], [7], [12]
    timed, compressed = [14, 15], [18, 19, 20]
    assert sync_points == [*every_step, *diloco_4, *diloco_3, *timed, *compressed]


@pytest.mark.slow
def test_momentum_outlives_a_change_within_diloco(played: Played) -> None:
    before, after = played.first("diloco"), played.first("changed_to_the_same")
    assert all(torch.equal(before[name], after[name]) for name in NAMES)


@pytest.mark.slow
def test_when_compression_ends_nothing_stays_behind(played: Played) -> None:
    wanted = [true_sums(played.world, step) for step in range(2)]
    assert_close(played.first("flushed"), {n: wanted[0][n] + wanted[1][n] for n in NAMES})


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    ["resumed_diloco", "resumed_streaming", "resumed_diloco_top_k", "resumed_top_k", "resumed_powersgd"],
)
def test_who_resumes_from_a_checkpoint_walks_on_bit_by_bit(played: Played, scene: str) -> None:
    for result in played.ranks(scene):
        for name in NAMES:
            assert torch.equal(result[f"on.{name}"], result[f"again.{name}"]), name
