"""`windlass jobs`: lists, shows and changes runs."""

import argparse
import json
from pathlib import Path

import pytest

from windlass.cli.main import main
from windlass.cli.training.hyperparameter_table import sync_words
from windlass.cli.training.jobs_submit import add_submit, options_of
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

STEP = {"event": "step", "time": 1e9, "step": 30, "loss": 2.5, "tokens_per_s": 1234.0, "bytes_sent": 3 << 20}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one run that has come to step 30."""
    job = Job.model_validate(
        {
            "name": "poems",
            "model": {"layers": 4, "width": 64},
            "train": {"steps": 100, "batch_sequences": 8},
            "layout": {"dp": 2},
        }
    )
    corpus = CorpusFacts("corpus", "digest", 512, 1_000_000, 100_000)
    run = plan_run(job, corpus, MachineFacts(2, 8 << 30, 1e11, False))
    place = StoreDir(tmp_path / "runs" / "poems" / "1")
    place.write(RUN_FILE, run.model_dump_json().encode())
    Journal(place, JOURNAL).append(STEP)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], home: Path, *argv: str) -> str:
    assert main(["jobs", *argv, "--home", str(home)]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_with_their_state(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = shown(capsys, home, "list").splitlines()[1].split()
    assert row == ["poems/1", "stopped", "30/100", "2.500", "1.23k", "dp=2"]


def test_an_empty_home_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "windlass train" in shown(capsys, tmp_path, "list")


def test_a_run_is_shown_with_the_settings_in_force(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, home, "show", "poems")
    for part in ("30 of 100", "dp=2, 2 processes", "4 sequences", "gradients are added up at every step"):
        assert part in text
    assert "3.0 MiB by each process" in text


def test_a_change_is_shown_until_it_is_taken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, home, "set", "poems", "sync.policy=diloco", "sync.every=20")
    assert "run poems/1 will continue from its next step boundary with: diloco every 20 steps" in said
    assert "pending: diloco every 20 steps" in shown(capsys, home, "show", "poems/1")


def test_a_script_gets_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(shown(capsys, home, "list", "--json"))[0]["loss"] == 2.5
    told = json.loads(shown(capsys, home, "set", "poems", "sync.every=7", "--json"))
    assert (told["run"], told["id"], told["sync"]["every"]) == ("poems/1", 1, 7)
    assert json.loads(shown(capsys, home, "show", "poems", "--json"))["requested"]["sync"]["every"] == 7


def test_a_key_that_cannot_change_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "set", "poems", "train.batch_sequences=5", "--home", str(home)]) == 2
    assert "cannot be changed in a run" in capsys.readouterr().err


def test_the_history_says_who_changed_what_and_when(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"event": "settings", "time": 1e9, "step": 30, "id": 1, "by": "ada", "undoes": None}
    told |= {
        "changed": {"learning_rate": 1e-4, "steps": None},
        "before": {"learning_rate": None, "steps": 90},
    }
    Journal(StoreDir(home / "runs/poems/1"), JOURNAL).append(told)
    (row,) = [line for line in shown(capsys, home, "show", "poems").splitlines() if "ada" in line]
    assert row.startswith("     1  2001-09-")
    assert row.endswith("ada  learning rate 0.0001, steps as planned")
    assert json.loads(shown(capsys, home, "show", "poems", "--json"))["history"] == [told]
    assert "undo" not in row
    assert "learning rate as planned" not in shown(capsys, home, "undo", "poems", "--by", "bob")
    pending = shown(capsys, home, "show", "poems")
    assert "requested by bob, pending: learning rate as planned, steps 90" in pending


def test_generations_are_shown_with_their_reasons(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"event": "generation", "time": 1e9, "generation": 3, "epoch": 1, "members": [{}, {}, {}]}
    told |= {"layout": {"dp": 3}, "reason": "worker w2 was lost"}
    Journal(StoreDir(home / "runs/poems/1"), JOURNAL).append(told)
    (row,) = [line for line in shown(capsys, home, "show", "poems").splitlines() if "w2 was" in line]
    assert row.split()[0] == "3"
    assert row.endswith("3  dp=3    worker w2 was lost")


def test_logs_are_lines_for_people_and_records_for_scripts(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(StoreDir(home / "runs/poems/1"), JOURNAL).append(
        {"event": "warning", "time": 1e9, "message": "a\nb"}
    )
    lines = shown(capsys, home, "logs", "poems", "--follow").splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("warning      message a b")
    records = [json.loads(line) for line in shown(capsys, home, "logs", "poems", "--json").splitlines()]
    assert records[0] == STEP
    assert len(shown(capsys, home, "logs", "poems", "--after", "1").splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["pause", "poems"], "there is nothing to pause"),
        (["resume", "poems"], "is not paused"),
        (["stop", "poems"], "there is nothing to stop"),
        (["undo", "poems"], "nothing to undo"),
        (["scale", "poems", "3"], "run poems/1 is not elastic"),
        (["scale", "poems", "0"], "must be at least 1"),
        (["set", "poems", "train.log_every=3", "--wait", "0"], "--wait 0"),
        (["set", "poems", "train.log_every=3", "--by", " "], "--by"),
        (["set", "poems", "train.log_every=3", "--wait", "5"], "cannot apply requests"),
    ],
)
def test_what_cannot_be_done_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    assert main(["jobs", *argv, "--home", str(home)]) == 2
    assert reason in capsys.readouterr().err


def test_submitted_options_are_those_that_were_given() -> None:
    parser = argparse.ArgumentParser()
    add_submit(parser)
    args = parser.parse_args(["job.toml", "--set", "train.steps=5", "--workers", "2", "--no-register"])
    given = options_of(args)
    assert given[:2] == ["--set", "train.steps=5"]
    again = parser.parse_args(["job.toml", *given])
    assert vars(again) == vars(args)


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        (Sync(policy="local", every=7), "weights are averaged every 7 steps"),
        (Sync(policy="timed", seconds=90), "weights are averaged every 1m 30s"),
        (Sync(compress="top-k"), "gradients are added up at every step, sent as top-k"),
        (Sync(policy="diloco", fragments=4, delay=2), "4 fragments, 2 steps of delay"),
    ],
)
def test_a_policy_is_said_with_the_keys_that_count(sync: Sync, words: str) -> None:
    assert words in sync_words(sync)
