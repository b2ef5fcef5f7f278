"""Whole runs of Baum and Welch on a small real corpus."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.conftest import MACHINE, tiny_job
from windlass.cluster.launch.launcher import free_port
from windlass.models.hmm.weights import write_weights
from windlass.models.recurrent_state import load_statistical
from windlass.plan.count_models import plan_statistic
from windlass.runs.training import corpus_facts
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.spec.settings import Settings
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint_verify import verify_checkpoint
from windlass.train.hmm import expectation
from windlass.train.hmm.checkpoints import KIND, load_checkpoint
from windlass.train.hmm.run import train
from windlass.train.loop import save_run

MakeRun = Callable[..., Path]

pytestmark = pytest.mark.slow


@pytest.fixture
def make(corpus_path: Path, tmp_path: Path) -> MakeRun:
    """Return a maker of folders of tiny runs: `make("a", steps=3, hmm={"states": 5}, layout={"dp": 2})`."""

    def folder(name: str, hmm: dict[str, Any] | None = None, **options: Any) -> Path:
        layout, checkpoint = options.pop("layout", {}), options.pop("checkpoint", {})
        base = tiny_job(Path("unused.txt")).model_dump(mode="json")
        base["model"] = {"family": "hmm", "context": 32, "hmm": {"states": 6, **(hmm or {})}}
        base["train"] = {"steps": 4, "evaluate_every": 2, "checkpoint_every": 1, **options}
        base |= {"layout": layout, "checkpoint": checkpoint}
        run = plan_statistic(Job.model_validate(base), corpus_facts(corpus_path), MACHINE)
        (tmp_path / name).mkdir()
        save_run(tmp_path / name, run)
        return tmp_path / name

    return folder


def never() -> bool:
    return False


def after(borders: int) -> Callable[[], bool]:
    """Return a question that is answered yes once it was asked so often."""
    asked = iter(range(10**9))
    return lambda: next(asked) >= borders


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == kind]


def tables(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny corpus be more than one block, as any larger one is."""
    monkeypatch.setattr(expectation, "MAX_SEQUENCES", 250)


def borders_of(folder: Path) -> int:
    """Return how often a run asks whether to stop in one iteration: before it, and at each block."""
    run = Run.model_validate_json((folder / "run.json").read_bytes())
    blocks = -(-run.batch_sequences // expectation.block_sequences(6, 32))
    assert blocks > 2
    return 1 + blocks


def test_a_run_leaves_a_model_that_is_better_than_its_first_guess(make: MakeRun) -> None:
    folder = make("a")
    assert train(folder, never)
    losses = [record["loss"] for record in events(folder, "step")]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 4
    held_out = events(folder, "evaluation")
    assert held_out[-1]["loss"] < held_out[0]["loss"]
    model = load_statistical(folder / "model")
    assert model.shape.family == "hmm"
    assert (
        json.loads((folder / "model" / "windlass.json").read_text())["metrics"]["loss"]
        == held_out[-1]["loss"]
    )
    assert events(folder, "finished")[0]["step"] == 4


def test_classes_begin_higher_than_chance(make: MakeRun) -> None:
    first = {}
    for initial in ("classes", "random"):
        folder = make(initial, {"initial": initial, "states": 12}, steps=2)
        train(folder, never)
        first[initial] = events(folder, "step")[-1]["loss"]
    assert first["classes"] < first["random"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("iterations", [0, 1.5, 3])
def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bits(make: MakeRun, iterations: float) -> None:
    whole, broken = make("whole"), make("broken")
    train(whole, never)
    assert not train(broken, after(int(iterations * borders_of(broken))))
    assert events(broken, "stopped")[0]["step"] == int(iterations)
    assert train(broken, never)
    assert tables(broken) == tables(whole)
    assert [e["loss"] for e in events(broken, "step")] == [e["loss"] for e in events(whole, "step")]


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_checkpoint_is_passed_over(make: MakeRun) -> None:
    whole, broken = make("whole"), make("broken")
    train(whole, never)
    assert not train(broken, after(3 * borders_of(broken)))
    newest = committed(broken / "checkpoints")[-1] / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    assert train(broken, never)
    assert events(broken, "resumed")[0]["step"] == 2
    assert "skipped" in events(broken, "warning")[0]["message"]
    assert tables(broken) == tables(whole)


def test_only_the_newest_checkpoints_are_kept(make: MakeRun) -> None:
    folder = make("a", steps=5, checkpoint_keep=2)
    train(folder, never)
    assert [path.name for path in committed(folder / "checkpoints")] == ["step-00000004", "step-00000005"]


@pytest.mark.usefixtures("small_blocks")
def test_copies_in_a_store_are_gone_on_from(make: MakeRun, tmp_path: Path) -> None:
    whole, broken = make("whole"), make("broken", checkpoint={"store": str(tmp_path / "store")})
    train(whole, never)
    assert not train(broken, after(2 * borders_of(broken)))
    for path in committed(broken / "checkpoints"):
        (path / "manifest.json").unlink()  # the disk of this machine is lost
    assert train(broken, never)
    assert events(broken, "resumed")[0]["step"] == 2
    assert tables(broken) == tables(whole)


def test_a_run_ends_when_nothing_more_is_gained(make: MakeRun) -> None:
    folder = make("a", {"states": 1}, steps=30)
    assert train(folder, never)
    assert events(folder, "finished")[0]["step"] == 3  # the first has nothing before it, the second gains
    assert events(folder, "converged")[0]["gain"] < 1e-4
    assert json.loads((folder / "model" / "windlass.json").read_text())["steps"] == 3


def test_a_run_that_has_converged_stays_so(make: MakeRun) -> None:
    folder = make("a", {"states": 1}, steps=30)
    train(folder, never)
    (folder / "model" / "manifest.json").unlink()  # it died before its model was written
    assert train(folder, never)
    assert len(events(folder, "step")) == 3


def test_a_time_budget_ends_a_run(make: MakeRun) -> None:
    folder = make("a", steps=None, time="1ms")
    assert train(folder, never)
    assert events(folder, "finished")[0]["step"] == 1
    assert events(folder, "converged")[0]["reason"] == "the time is up"


def test_double_precision_climbs_as_high(make: MakeRun) -> None:
    single, double = make("single"), make("double", {"precision": "float64"})
    for folder in (single, double):
        train(folder, never)
    found = [[record["loss"] for record in events(folder, "step")] for folder in (single, double)]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_gpu_is_refused(make: MakeRun) -> None:
    folder = make("a")
    run = Run.model_validate_json((folder / "run.json").read_bytes())
    machine = run.job.machine.model_copy(update={"device": "cuda"})
    save_run(folder, run.model_copy(update={"job": run.job.model_copy(update={"machine": machine})}))
    with pytest.raises(BadInput, match="on CPUs"):
        train(folder, never)


@pytest.mark.parametrize("step", [2, 3])
def test_a_checkpoint_is_held_to_what_the_run_said_of_it(make: MakeRun, step: int) -> None:
    folder = make("a", checkpoint_keep=9)
    train(folder, never)
    run = Run.model_validate_json((folder / "run.json").read_bytes())
    found = verify_checkpoint(folder, run, "local", step)
    assert found.ok, found.message
    assert ("the evaluation" if step == 2 else "step 4") in found.message
    path = folder / "checkpoints" / f"step-{step:08d}"
    writer = DirectoryWriter(StoreDir(path))  # whole, but with the probabilities of another step
    write_weights(writer, load_checkpoint(folder / "checkpoints" / "step-00000001")[0])
    writer.adopt("state.json")
    writer.commit({"kind": KIND, "step": step})
    assert not verify_checkpoint(folder, run, "local", step).ok


def ask(folder: Path, number: int, **wanted: Any) -> None:
    asked = Settings(id=number, by="somebody", time=1.0, **wanted)
    (folder / "settings.json").write_text(asked.model_dump_json())


def test_fewer_iterations_can_be_requested(make: MakeRun) -> None:
    folder = make("a")
    ask(folder, 1, steps=2, evaluate_every=1)
    assert train(folder, never)
    assert events(folder, "finished")[0]["step"] == 2
    assert events(folder, "settings")[0]["changed"] == {"steps": 2, "evaluate_every": 1}
    assert [event["step"] for event in events(folder, "evaluation")] == [1, 2]


def test_a_run_that_is_stopped_ends_and_continues_when_resumed(make: MakeRun) -> None:
    folder = make("a")
    ask(folder, 1, stop=True)
    assert not train(folder, never)
    assert events(folder, "stopped")[0]["step"] == 0
    ask(folder, 2)
    assert train(folder, never)
    assert [event["changed"] for event in events(folder, "settings")] == [{"stop": True}, {"stop": False}]


def test_a_paused_run_waits_until_it_is_resumed(make: MakeRun) -> None:
    folder = make("a")
    ask(folder, 1, paused=True)

    def somebody() -> bool:
        if (folder / "journal.jsonl").exists() and events(folder, "paused"):
            ask(folder, 2)
        return False

    assert train(folder, somebody)
    assert events(folder, "paused")[0]["step"] == events(folder, "unpaused")[0]["step"] == 0


def test_what_belongs_to_gradients_is_refused(make: MakeRun) -> None:
    folder = make("a", steps=1)
    ask(folder, 1, learning_rate=0.1)
    assert train(folder, never)
    assert events(folder, "settings")[0]["refused"] == "a hidden Markov run has no learning_rate"


def workers(folder: Path, world: int) -> Iterator[subprocess.Popen[bytes]]:
    meeting = f"127.0.0.1:{free_port('127.0.0.1', hash(str(folder)))}"
    for rank in range(world):
        arguments = RankInfo(rank, world, meeting).arguments
        yield subprocess.Popen(
            [sys.executable, "-m", "windlass.train", "run", str(folder), *arguments], stdout=subprocess.PIPE
        )


def test_two_workers_end_with_the_bits_of_one(make: MakeRun) -> None:
    alone, together = make("alone", {"states": 24}), make("together", {"states": 24}, layout={"dp": 2})
    train(alone, never)
    processes = list(workers(together, 2))
    assert [process.wait(120) for process in processes] == [0, 0]
    assert tables(together) == tables(alone)
    assert [e["loss"] for e in events(together, "step")] == [e["loss"] for e in events(alone, "step")]
    assert events(together, "started")[0]["workers"] == 2


def test_two_workers_that_must_end_save_and_one_continues(make: MakeRun) -> None:
    alone = make("alone", {"min_gain": 0}, steps=40)
    together = make("together", {"min_gain": 0}, steps=40, layout={"dp": 2})
    train(alone, never)
    processes = list(workers(together, 2))
    assert processes[0].stdout is not None
    for line in processes[0].stdout:
        if json.loads(line).get("event") == "step":
            break
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [130, 130]
    assert 1 <= events(together, "stopped")[0]["step"] < 40
    run = Run.model_validate_json((together / "run.json").read_bytes())
    save_run(together, run.model_copy(update={"layout": run.layout.model_copy(update={"dp": 1})}))
    assert train(together, never)
    assert tables(together) == tables(alone)
