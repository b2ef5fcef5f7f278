"""Workers that keep their memory: whatever happens, they end with what an undisturbed run ends with.

The tests play the coordinator (elastic_stage.py); the workers are real processes, killed and frozen for real.
"""

import importlib.util
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from windlass.corpus.batches import digest_of_range
from windlass.spec.protocol.elastic import MEMBERS
from windlass.spec.run import CHECKPOINTS, Run
from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint.reader import CheckpointReader

pytestmark = pytest.mark.slow

STEPS = 200
MakeRun = Callable[..., Run]


def _load_stage() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "elastic_stage", Path(__file__).with_name("elastic_stage.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scene = _load_stage()


def elastic_run(make_run: MakeRun, layout: dict[str, Any], **elastic: Any) -> Run:
    rare = {"learning_rate": 3e-4, "checkpoint_every": 10_000, "evaluate_every": 10_000, "log_every": 10}
    return make_run(
        train={"steps": STEPS, "batch_sequences": 12, "micro_batch_sequences": 3, **rare},
        layout=layout,
        elastic=elastic,
    )


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    source = CheckpointReader(committed(folder / CHECKPOINTS)[-1])
    return {name: source.read(name) for name in source.names()}


def difference(one: Path, other: Path) -> float:
    ours, theirs = weights_of(one), weights_of(other)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def check_ledger(stage: Any, batch: int = 12) -> None:
    """Every position up to the end was used exactly once, by what was really read."""
    at = 0
    for record in stage.events("ledger"):
        first, until = record["samples"]
        assert first == at, f"from {at} on: {record}"
        assert until == record["steps"][1] * batch
        assert record["digest"] == digest_of_range(first, until)
        at = until
    assert at == STEPS * batch


@pytest.fixture(scope="module")
def references() -> dict[str, Path]:
    return {}


@pytest.fixture
def reference(
    make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory, references: dict[str, Path]
) -> Callable[[Run], Path]:
    """Return the folder of the same run done by one worker that nobody disturbs."""

    def play(run: Run) -> Path:
        key = run.model_dump_json()
        if key not in references:
            folder = tmp_path_factory.mktemp("reference")
            with scene.staged(folder, run) as stage:
                stage.start("n-ref")
                stage.assign("n-ref", layout="dp=1")
                stage.until_done("n-ref")
            references[key] = folder
        return references[key]

    return play


def test_killed_and_frozen_members_do_not_change_a_bit(
    tmp_path: Path, make_run: MakeRun, reference: Callable[[Run], Path]
) -> None:
    run = elastic_run(make_run, {"dp": 4}, deterministic=True)
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2", "n-3", "n-4", "n-5")
        stage.assign("n-1", "n-2", "n-3")
        stage.until_step(20, "n-2", "n-3")
        stage.kill("n-1")
        stage.abandon("n-2", "n-3")
        stage.assign("n-2", "n-3", "n-4")
        stage.until_step(60, "n-2", "n-3", "n-4")
        stage.kill("n-3", signal.SIGSTOP)
        stage.abandon("n-2", "n-4")
        stage.assign("n-4", "n-2")
        stage.until_step(100, "n-2", "n-4")
        stage.drain("n-2", "n-4")
        stage.assign("n-5", "n-2", "n-4")
        stage.until_done("n-2", "n-4", "n-5")
        check_ledger(stage)
        settled = stage.events("settled")
    assert [record["source"] for record in settled] == ["start", "memory", "memory", "memory"]
    assert [record["rolled_back"] for record in settled] == [0, 0, 0, 0]
    assert difference(tmp_path, reference(run)) == 0.0


def test_sums_in_any_order_stay_within_tolerance(
    tmp_path: Path, make_run: MakeRun, reference: Callable[[Run], Path]
) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2", "n-3")
        stage.assign("n-1")
        stage.until_step(30, "n-1")
        stage.drain("n-1")
        stage.assign("n-1", "n-2", "n-3", layout="dp=3,shares=5:4:3")
        stage.until_step(60, "n-1", "n-2", "n-3")
        stage.kill("n-1")
        stage.abandon("n-2", "n-3")
        stage.assign("n-2", "n-3")
        stage.until_done("n-2", "n-3")
        check_ledger(stage)
    assert difference(tmp_path, reference(run)) < 1e-3


@pytest.mark.parametrize("layout", ["tp=2", "pp=2,micro_batches=2", "sharded=2"])
def test_a_divided_model_moves_from_memory_to_memory(
    tmp_path: Path, make_run: MakeRun, reference: Callable[[Run], Path], layout: str
) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2", "n-3")
        stage.assign("n-1", "n-2", layout=layout)
        stage.until_step(30, "n-1", "n-2")
        stage.drain("n-1", "n-2")
        stage.assign("n-3", "n-2", "n-1", layout="sharded=3")
        stage.until_step(60, "n-1", "n-2", "n-3")
        stage.drain("n-1", "n-2", "n-3", departs=True)
        stage.assign("n-1", layout="dp=1")
        stage.until_done("n-1")
        settled = stage.events("settled")
        assert [record["source"] for record in settled] == ["start", "memory", "checkpoint"]
        assert [record["rolled_back"] for record in settled] == [0, 0, 0]
        check_ledger(stage)
    assert difference(tmp_path, reference(run)) < 1e-3


def test_state_without_a_holder_comes_from_the_checkpoint(
    tmp_path: Path, make_run: MakeRun, reference: Callable[[Run], Path]
) -> None:
    run = elastic_run(make_run, {"dp": 2})
    run = run.model_copy(update={"checkpoint_every": 20})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2", "n-3")
        stage.assign("n-1", "n-2", layout="sharded=2")
        stage.until_step(50, "n-1", "n-2")
        stage.kill("n-1")
        stage.kill("n-2")
        stage.assign("n-3", layout="dp=1")
        stage.until_done("n-3")
        settled = stage.events("settled")[-1]
        resumed = stage.events("resumed")[-1]
    assert settled["source"] == "checkpoint"
    assert settled["step"] == resumed["step"] >= 20
    assert settled["rolled_back"] > 0
    assert difference(tmp_path, reference(run.model_copy(update={"checkpoint_every": 10_000}))) < 1e-3


def test_what_a_lost_member_alone_held_is_in_the_memory_of_its_buddy(
    tmp_path: Path, make_run: MakeRun, reference: Callable[[Run], Path]
) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2", "n-3")
        stage.assign("n-1", "n-2", "n-3", layout="sharded=3")
        stage.until_step(60, "n-1", "n-2", "n-3")
        stage.kill("n-2")
        stage.abandon("n-1", "n-3")
        stage.assign("n-3", "n-1", layout="pp=2,micro_batches=2")
        stage.until_done("n-1", "n-3")
        settled = stage.events("settled")[-1]
    assert settled["source"] == "memory"
    assert 0 < settled["step"] < 300
    assert settled["rolled_back"] >= 0
    assert difference(tmp_path, reference(run)) < 1e-3


def test_a_coordinator_that_dies_is_not_noticed_by_the_steps(tmp_path: Path, make_run: MakeRun) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2")
        stage.assign("n-1", "n-2")
        for step in (20, 60, 100):
            stage.until_step(step, "n-1", "n-2")
            stage.replace_coordinator()
        stage.until_done("n-1", "n-2")
        check_ledger(stage)
        assert len(stage.events("settled")) == 1


def test_members_that_were_replaced_without_their_knowledge_write_nothing_more(
    tmp_path: Path, make_run: MakeRun
) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2")
        stage.assign("n-1")
        stage.until_step(20, "n-1")
        (tmp_path / MEMBERS).write_text(json.dumps({"generation": 2}))
        stage.until(lambda: stage.actors["n-1"].lobby is not None)
        assert "generation 2 continues" in stage.actors["n-1"].lobby.why
        assert stage.events("ledger")[-1]["steps"][1] < STEPS
        stage.generation = 2
        stage.assign("n-2")
        stage.until_done("n-2")


def test_a_worker_that_must_leave_leaves_at_a_sync_point(tmp_path: Path, make_run: MakeRun) -> None:
    run = elastic_run(make_run, {"dp": 2})
    with scene.staged(tmp_path, run) as stage:
        stage.start("n-1", "n-2")
        stage.assign("n-1", "n-2")
        stage.until_step(20, "n-1", "n-2")
        stage.kill("n-1", signal.SIGTERM)
        stage.until(lambda: stage.actors["n-1"].done is not None)
        assert stage.actors["n-1"].done.outcome == "left"
        stage.assign("n-2")
        stage.until_done("n-2")
        check_ledger(stage)
        assert stage.events("settled")[-1]["source"] == "memory"
