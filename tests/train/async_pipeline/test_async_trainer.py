"""Training without stops between batches: real processes play the runs of flow_scenes.py."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from windlass.parallel.param_shard import ParamShard, whole
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.runs.training import corpus_facts
from windlass.spec.job import Job
from windlass.spec.layout import parse_layout
from windlass.spec.run import Run
from windlass.spec.settings import pipeline_refusal
from windlass.spec.sync import Sync
from windlass.train.async_pipeline.async_trainer import (
    DRAIN_EVERY,
    clip_apart,
    limit_of_part,
    next_boundary,
)
from windlass.train.loop import save_run
from windlass.train.replan import REPLAN_AT

SCENES_FILE = Path(__file__).with_name("flow_scenes.py")
FLOW = "schedule=asynchronous"
TWO = {
    "sync": "pp=2",
    "drained": f"pp=2,{FLOW},staleness=0",
    "flow": f"pp=2,{FLOW}",
    "flow-again": f"pp=2,{FLOW}",
    "flow-untied": f"pp=2,{FLOW}",
    "stopped-flow": f"pp=2,{FLOW}",
}
THREE = {"flow": f"pp=3,{FLOW}", "drained": f"pp=3,{FLOW},staleness=0", "sync": "pp=3"}
FOUR = {"replicas": f"pp=2,dp=2,{FLOW}", "features": f"pp=2,tp=2,{FLOW}", "features-1f1b": "pp=2,tp=2"}
STEPS = 12
NOWHERE = CorpusFacts("nowhere", "none", vocabulary=64, train_tokens=10**6, validation_tokens=10**4)
MACHINE = MachineFacts(cores=1, memory_bytes=8 << 30, peak_flops=5e10, has_compiler=False)

slow = pytest.mark.slow


class Played:
    """What the processes of one world came to."""

    def __init__(self, world: int, home: Path) -> None:
        self._world, self._home = world, home

    def told(self, scene: str) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = json.loads((self._home / scene / "told.0.json").read_text())
        return told

    def losses(self, scene: str) -> list[float]:
        return [fact["loss"] for fact in self.told(scene) if "loss" in fact]

    def weights(self, scene: str) -> list[dict[str, Tensor]]:
        folder = self._home / scene
        return [load_file(folder / f"weights.{rank}.safetensors") for rank in range(self._world)]

    def versions(self, scene: str) -> list[int]:
        """The most different weights that each rank held at a time."""
        paths = [self._home / scene / f"told.{rank}.json" for rank in range(self._world)]
        return [json.loads(path.read_text())[-1]["versions"] for path in paths]


def perform(scenes: dict[str, str], corpus: Path, home: Path) -> Played:
    world = parse_layout(next(iter(scenes.values()))).world
    for scene, layout in scenes.items():
        (home / scene).mkdir()
        save_run(home / scene, flow_run(corpus_facts(corpus), layout, tied=scene != "flow-untied"))
    command = [sys.executable, str(SCENES_FILE)]
    processes = [
        subprocess.Popen([*command, str(rank), str(world), str(home / "meeting"), str(home)])
        for rank in range(world)
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()
    return Played(world, home)


def flow_run(corpus: CorpusFacts, layout: str, *, tied: bool = True) -> Run:
    """A run with batches of 8 sequences and boundaries after steps 5, 8, 10 and 12."""
    data: dict[str, Any] = {
        "name": "flow",
        "seed": 7,
        "model": {"layers": 4, "width": 32, "heads": 2, "context": 32, "tied": tied},
        "train": {
            "steps": STEPS,
            "batch_sequences": 8,
            "micro_batch_sequences": 2,
            "learning_rate": 3e-3,
            "checkpoint_every": 8,
            "evaluate_every": 5,
            "evaluate_sequences": 8,
        },
        "layout": parse_layout(layout).model_dump(),
        "machine": {"compile": "off", "threads": 1},
    }
    return plan_run(Job.model_validate(data), corpus, MACHINE)


@pytest.fixture(scope="module")
def two(corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return perform(TWO, corpus_path, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return perform(THREE, corpus_path, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def four(corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return perform(FOUR, corpus_path, tmp_path_factory.mktemp("four"))


def assert_same_bits(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> None:
    for rank, (first, second) in enumerate(zip(one, other, strict=True)):
        assert first.keys() == second.keys()
        for name in first:
            assert torch.equal(first[name], second[name]), f"rank {rank}: {name}"


def assert_near(found: list[float], wanted: list[float], share: float) -> None:
    assert len(found) == len(wanted) == STEPS
    assert max(abs(a - b) / b for a, b in zip(found, wanted, strict=True)) < share


@slow
def test_without_staleness_two_stages_learn_the_same_bits_as_1f1b(two: Played) -> None:
    assert two.losses("drained") == two.losses("sync")
    assert_same_bits(two.weights("drained"), two.weights("sync"))


@slow
def test_without_staleness_three_stages_learn_the_same_bits_as_1f1b(three: Played) -> None:
    assert three.losses("drained") == three.losses("sync")
    assert_same_bits(three.weights("drained"), three.weights("sync"))


@slow
def test_the_same_run_gives_the_same_bits_again(two: Played) -> None:
    assert two.losses("flow") == two.losses("flow-again")
    assert_same_bits(two.weights("flow"), two.weights("flow-again"))


@slow
def test_a_stopped_run_continues_as_if_it_had_not_been_stopped(two: Played) -> None:
    told = two.told("stopped-flow")
    before = told[: told.index({"resumed": True})]
    assert [fact["step"] for fact in before if fact["stop"]] == [5]
    assert_same_bits(two.weights("stopped-flow"), two.weights("flow"))


@slow
@pytest.mark.parametrize("scene", ["flow", "flow-untied"])
def test_staleness_changes_the_losses_a_little(two: Played, scene: str) -> None:
    assert two.losses(scene) != two.losses("sync")
    if scene == "flow":
        assert_near(two.losses(scene), two.losses("sync"), 0.03)
    assert two.losses(scene)[-1] < two.losses(scene)[0] - 0.5


@slow
def test_three_stages_learn_nearly_as_two(two: Played, three: Played) -> None:
    assert_near(three.losses("flow"), two.losses("flow"), 0.01)


@slow
def test_every_step_is_reported_once_and_agreed_at_sync_points_only(two: Played) -> None:
    facts = [fact for fact in two.told("flow") if "step" in fact]
    assert [fact["step"] for fact in facts] == list(range(1, STEPS + 1))
    assert [fact["step"] for fact in facts if fact["agreed"]] == [5, 8, 10, 12]


@slow
def test_no_stage_holds_more_versions_of_its_weights_than_staleness_allows(
    two: Played, three: Played
) -> None:
    assert two.versions("drained") == [1, 1]
    assert two.versions("flow") == [2, 1]
    assert three.versions("flow") == [2, 2, 1]


@slow
def test_both_ends_hold_the_same_bits_of_the_tied_matrix(two: Played, three: Played, four: Played) -> None:
    for played, scene in ((two, "flow"), (three, "flow"), (four, "replicas")):
        first, *_, last = (weights.get("embedding.weight") for weights in played.weights(scene))
        assert first is not None
        assert last is not None
        assert torch.equal(first, last)


@slow
def test_replicas_hold_the_same_bits(four: Played) -> None:
    weights = four.weights("replicas")
    assert_same_bits([weights[0], weights[2]], [weights[1], weights[3]])


@slow
def test_stages_that_divide_features_learn_as_whole_ones(two: Played, four: Played) -> None:
    assert_near(four.losses("features"), two.losses("flow"), 1e-4)


def blank_run(**changed: Any) -> Run:
    return flow_run(NOWHERE, "pp=2").model_copy(update=changed)


@given(step=st.integers(0, 3000), evaluate=st.integers(1, 300), save=st.integers(1, 300))
def test_a_sync_point_comes_soon_and_no_later_than_the_loop_needs_it(
    step: int, evaluate: int, save: int
) -> None:
    run = blank_run(steps=10_000, time_s=60.0, evaluate_every=evaluate, checkpoint_every=save)
    boundary = next_boundary(run, step)
    assert step < boundary <= step + DRAIN_EVERY
    needed = [n for n in range(step + 1, boundary) if n % evaluate == 0 or n % save == 0 or n in REPLAN_AT]
    assert needed == []


def test_the_last_step_is_a_sync_point() -> None:
    assert next_boundary(blank_run(steps=7, evaluate_every=100, checkpoint_every=100), 3) == 7


@pytest.mark.parametrize(
    ("layout", "tied", "sync", "refused"),
    [
        ("pp=2,dp=2", True, Sync(compress="top-k"), True),
        ("pp=2,dp=2", True, Sync(compress="powersgd"), True),
        ("pp=2,dp=2", True, Sync(compress="bfloat16"), False),
        ("pp=2,dp=2", True, Sync(policy="diloco", compress="top-k"), False),
        ("pp=2,dp=2", False, Sync(compress="top-k"), False),
        ("pp=2", True, Sync(compress="top-k"), False),
    ],
)
def test_compression_that_leaves_something_out_is_refused_where_ends_are_tied(
    layout: str, tied: bool, sync: Sync, refused: bool
) -> None:
    run = flow_run(NOWHERE, f"{layout},{FLOW}", tied=tied)
    assert (pipeline_refusal(run, sync) is not None) == refused


def held(name: str, gradient: list[float] | None) -> ParamShard:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = None if gradient is None else torch.tensor(gradient)
    return ParamShard(name, (2,), whole((2,)), parameter, copies=1)


def test_a_stage_is_clipped_by_its_own_norm() -> None:
    large, none = held("large", [3.0, 4.0]), held("none", None)
    assert clip_apart([large, none], 1.0, None) == 5.0
    assert large.tensor.grad is not None
    assert large.tensor.grad.tolist() == pytest.approx([0.6, 0.8])


@given(
    st.lists(
        st.lists(st.floats(-100, 100, width=32, allow_subnormal=False), min_size=2, max_size=2),
        min_size=1,
        max_size=5,
    )
)
def test_parts_that_are_clipped_apart_stay_within_the_limit_of_the_whole(
    gradients: list[list[float]],
) -> None:
    parts = [held(str(number), gradient) for number, gradient in enumerate(gradients)]
    for part in parts:
        clip_apart([part], limit_of_part(1.0, 1 / len(parts)), None)
    whole_gradient = torch.cat([part.tensor.grad for part in parts if part.tensor.grad is not None])
    assert whole_gradient.norm() <= 1.0 + 1e-5


def test_a_small_gradient_is_not_clipped() -> None:
    small = held("small", [0.3, 0.4])
    assert clip_apart([small], 1.0, None) == pytest.approx(0.5)
    assert small.tensor.grad is not None
    assert small.tensor.grad.tolist() == pytest.approx([0.3, 0.4])
