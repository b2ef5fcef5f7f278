"""Layouts proved by real processes, as `windlass prove` does it, in a small form."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.lab.proofs.layouts.comparison import RESHARD
from windlass.lab.proofs.layouts.layouts_proof import prove
from windlass.spec.protocol.progress import silent
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

SOME = (
    "dp=2,shares=2:1",
    "sharded=3",
    "tp=2",
    "cp=2",
    "pp=2,micro_batches=4,schedule=zbv,virtual=2",
    "sharded=2,pp=2,micro_batches=3",
)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_layouts_learn_the_same_as_one_process(tmp_path: Path, family: str) -> None:
    told: list[dict[str, Any]] = []
    result = prove(
        "layouts", tmp_path, families=[family], layouts=SOME, steps=4, report=silent, tell=told.append
    )
    assert result["figures"]["layouts_equal"] == result["figures"]["layouts_tried"] == len(SOME), result
    assert result["figures"]["worst_loss_difference"] < 1e-5
    assert [event["layout"] for event in told if event["event"] == "case"] == list(SOME)


def test_an_mlp_learns_the_same_with_its_text_or_its_weights_divided(tmp_path: Path) -> None:
    fitting = ("dp=2", "dp=2,shares=2:1", "sharded=2")
    layouts = (*fitting, "tp=2")  # which an mlp cannot have, and which is passed over
    result = prove(
        "layouts", tmp_path, families=["mlp"], layouts=layouts, steps=4, report=silent, tell=lambda _: None
    )
    assert result["figures"]["layouts_equal"] == result["figures"]["layouts_tried"] == len(fitting), result
    assert result["figures"]["worst_loss_difference"] < 1e-5


def test_a_run_continues_under_other_layouts_as_if_nothing_had_changed(tmp_path: Path) -> None:
    result = prove(
        "reshard",
        tmp_path,
        families=["gpt2"],
        layouts=RESHARD,
        steps=4,
        report=silent,
        tell=lambda _event: None,
    )
    assert result["figures"]["layouts_equal"] == 1, result


def test_a_pipeline_that_drifted_apart_is_cut_anew(
    windlass: Callable[..., Any], as_json: Callable[..., Any], folder: Path
) -> None:
    uneven = "pp=2,stages=7:1,micro_batches=4"
    wide = ("--set", "model.layers=8", "--set", "model.width=64", "--set", "train.checkpoint_every=5")
    as_json("train", "job.toml", "--layout", f"{uneven},recut=apply", *wide, "--set", "train.steps=15")
    cuts = events(folder, "recut")
    assert cuts, "seven layers against one are not worth a word"
    assert cuts[0]["applied"]
    assert max(cuts[0]["stages"]) < 7
    assert [e["step"] for e in events(folder, "finished")] == [15]


def test_the_way_to_synchronise_changes_in_mid_run(
    windlass: Callable[..., Any], environment: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-m", "windlass.cli", "train", "job.toml", "--layout", "dp=2"]
    steps = ["--set", "train.steps=400", "--set", "train.evaluate_every=400"]
    with subprocess.Popen([*command, *steps], cwd=folder, env=environment) as launcher:
        wait_until(lambda: len(journal(folder)) > 3)
        done = windlass("jobs", "set", "tiny", "sync.policy=local", "sync.every=7")
        assert done.returncode == 0, done.stderr
        assert launcher.wait() == 0
    (taken,) = events(folder, "settings")
    assert taken["changed"]["sync"]["every"] == 7
    steps_told = [e for e in events(folder, "step") if "bytes_sent" in e]
    before = [e for e in steps_told if e["step"] <= taken["step"]]
    after = [e for e in steps_told if e["step"] > taken["step"] + 10]
    per_step = before[-1]["bytes_sent"] / before[-1]["step"]
    later = (after[-1]["bytes_sent"] - after[0]["bytes_sent"]) / (after[-1]["step"] - after[0]["step"])
    assert later < per_step / 3


def journal(folder: Path) -> list[dict[str, Any]]:
    place = folder / "home" / "runs" / "tiny" / "1"
    return list(Journal(StoreDir(place)).read()) if (place / "journal.jsonl").exists() else []


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in journal(folder) if event["event"] == kind]


def wait_until(seen: Callable[[], bool]) -> None:
    for _ in range(1200):
        if seen():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within a minute")
