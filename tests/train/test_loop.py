"""The loop itself, in this process: what it learns, and that stopping changes nothing."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from windlass.spec.errors import WindlassError
from windlass.spec.run import Run
from windlass.store.journal import Journal
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir
from windlass.train import ledger
from windlass.train.checkpoint.async_save import AsyncSave, committed
from windlass.train.loop import save_run, train

pytestmark = pytest.mark.slow

PART = "part-00000.safetensors"
FAMILIES = ["llama", "gpt2", "bert", "mlp"]


def start(folder: Path, run: Run) -> Path:
    folder.mkdir()
    save_run(folder, run)
    return folder


def model_of(family: str) -> dict[str, Any]:
    more = {"heads": None, "mlp": {"start": "random"}} if family == "mlp" else {}
    return {"family": family, **more}


def stop_after(steps: int) -> Callable[[], bool]:
    """Ask to stop at the given call: the loop asks once a step."""
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= steps


def never() -> bool:
    return False


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in Journal(StoreDir(folder)).read() if e["event"] == kind]


def assert_same_bits(one: Path, other: Path) -> None:
    first, second = load_file(one / PART), load_file(other / PART)
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, make_run: Callable[..., Run], family: str
) -> None:
    run = make_run(model=model_of(family))
    whole, broken = start(tmp_path / "whole", run), start(tmp_path / "broken", run)
    assert train(whole, never)
    assert not train(broken, stop_after(3))
    assert not train(broken, stop_after(4))
    assert train(broken, never)
    assert_same_bits(committed(whole / "checkpoints")[-1], committed(broken / "checkpoints")[-1])
    losses = {e["step"]: e["loss"] for e in events(broken, "step")}
    assert losses == {e["step"]: e["loss"] for e in events(whole, "step")}
    assert (
        verify(StoreDir(whole / "model")).files["model.safetensors"]
        == verify(StoreDir(broken / "model")).files["model.safetensors"]
    )


def test_a_run_that_lost_everything_since_a_checkpoint_ends_with_the_same_bits(
    tmp_path: Path, make_run: Callable[..., Run]
) -> None:
    """As after a SIGKILL: the newest checkpoint is an older one, and steps are done again."""
    run = make_run()
    whole, broken = start(tmp_path / "whole", run), start(tmp_path / "broken", run)
    assert train(whole, never)
    assert not train(broken, stop_after(7))
    StoreDir(committed(broken / "checkpoints")[-1]).remove()
    assert train(broken, never)
    assert_same_bits(committed(whole / "checkpoints")[-1], committed(broken / "checkpoints")[-1])


@pytest.mark.parametrize("harm", ["truncate", "flip", "half"])
def test_a_damaged_checkpoint_is_passed_over_and_said(
    tmp_path: Path, make_run: Callable[..., Run], harm: str
) -> None:
    folder = start(tmp_path / "run", make_run())
    assert not train(folder, stop_after(9))
    newest = committed(folder / "checkpoints")[-1]
    weights = newest / PART
    data = bytearray(weights.read_bytes())
    if harm == "truncate":
        weights.write_bytes(data[: len(data) // 2])
    elif harm == "flip":
        data[-5] ^= 1
        weights.write_bytes(data)
    else:
        (newest / "manifest.json").unlink()
    assert train(folder, never)
    assert events(folder, "resumed")[-1]["step"] == 8
    told = [e["message"] for e in events(folder, "warning")]
    assert (len(told) == 1) == (harm != "half")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns(tmp_path: Path, make_run: Callable[..., Run], family: str) -> None:
    folder = start(
        tmp_path / "run",
        make_run(model=model_of(family), train={"steps": 60, "evaluate_every": 60, "schedule": "wsd"}),
    )
    assert train(folder, never)
    losses = [e["loss"] for e in events(folder, "step")]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5
    assert events(folder, "evaluation")[-1]["loss"] < losses[0] - 0.5


def test_micro_batches_add_up_to_the_batch(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    for family in ("llama", "bert"):
        curves = []
        for micro in (1, 2, 4):
            run = make_run(model={"family": family}, train={"micro_batch_sequences": micro, "steps": 6})
            folder = start(tmp_path / f"{family}-{micro}", run)
            assert train(folder, never)
            curves.append([e["loss"] for e in events(folder, "step")])
        assert curves[0] == pytest.approx(curves[1], rel=1e-4)
        assert curves[0] == pytest.approx(curves[2], rel=1e-4)


def test_the_result_says_where_it_comes_from(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = start(tmp_path / "run", run)
    assert train(folder, never)
    lineage = json.loads((folder / "model" / "windlass.json").read_text())
    assert lineage["job"]["name"] == "tiny"
    assert lineage["corpus_digest"] == run.corpus_digest
    assert lineage["parameters"] == run.shape.parameters
    assert lineage["metrics"]["loss"] == pytest.approx(events(folder, "evaluation")[-1]["loss"])
    assert math.exp(lineage["metrics"]["loss"]) == pytest.approx(lineage["metrics"]["perplexity"])


def test_curves_can_be_looked_at_in_tensorboard(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    folder = start(tmp_path / "run", make_run())
    assert train(folder, never)
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    shown = [(s.step, round(s.value, 4)) for s in board.Scalars("train/loss")]
    assert shown == [(e["step"], pytest.approx(e["loss"], abs=1e-3)) for e in events(folder, "step")]
    assert board.Scalars("validation/loss")


def test_only_as_many_checkpoints_are_kept_as_requested(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    folder = start(tmp_path / "run", make_run(train={"checkpoint_every": 2, "checkpoint_keep": 2}))
    assert train(folder, never)
    assert [p.name for p in committed(folder / "checkpoints")] == ["step-00000010", "step-00000012"]


def test_the_ledger_is_written_before_a_checkpoint_that_the_next_one_overtakes(
    tmp_path: Path, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "WRITE_EVERY_S", 1e9)  # only who must have it on the disk writes
    monkeypatch.setattr(AsyncSave, "written", False)  # a disk so slow that no sync point finds a save written
    run = make_run().model_copy(update={"checkpoint_every": 2})
    folder = start(tmp_path / "run", run)
    assert train(folder, never)
    reached = saves = 0
    for event in Journal(StoreDir(folder)).read():
        if event["event"] == "ledger":
            reached = event["steps"][1]
        elif event["event"] == "checkpoint":
            saves += 1
            assert event["step"] <= reached
    assert saves > 1


def test_a_loss_that_explodes_is_a_sentence(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    run = make_run(train={"learning_rate": 1e30, "clip": 0.0, "warmup_steps": 0, "steps": 30})
    with pytest.raises(WindlassError, match="lower \\[train\\] learning_rate"):
        train(start(tmp_path / "run", run), never)
