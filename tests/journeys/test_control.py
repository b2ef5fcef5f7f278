"""A run that is changed while it goes on, from the command line and over HTTP."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.sdk.jobs import Jobs
from windlass.store.journal import Journal
from windlass.store.place import Place

pytestmark = pytest.mark.slow

LONG = (
    "--set",
    "machine.compile=off",
    "--set",
    "train.steps=200000",
    "--set",
    "train.evaluate_every=200000",
    "--set",
    "train.checkpoint_every=200000",
)


@pytest.fixture
def submitted(as_json: Callable[..., Any], folder: Path) -> Iterator[str]:
    """A run of two processes in the background; ended with the test, whatever happened."""
    told = as_json("jobs", "submit", "job.toml", "--workers", "2", *LONG)
    try:
        wait_until(lambda: bool(journal(folder, "step")))
        yield told["run"]
    finally:
        for process in (process for process in psutil.process_iter() if _works_for(process, told["path"])):
            process.terminate()


def _works_for(process: psutil.Process, path: str) -> bool:
    """Whether a process is the launcher of this home: the others end with it."""
    home = str(Path(path).parents[2])
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return "train" in arguments and home in arguments


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    records = Journal(Place(folder / "home" / "runs" / "tiny" / "1")).read()
    return [record for record in records if record["event"] == event]


def wait_until(seen: Callable[[], bool]) -> None:
    for _ in range(1800):
        if seen():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within three minutes")


def test_a_submitted_run_is_changed_paused_undone_stopped_and_resumed(
    windlass: Callable[..., Any], as_json: Callable[..., Any], submitted: str, folder: Path
) -> None:
    asked = ("train.learning_rate=1e-5", "train.micro_batch_sequences=1", "sync.policy=local", "sync.every=5")
    taken = as_json("jobs", "set", submitted, *asked, "--by", "ada", "--wait", "180")["taken"]
    assert taken["changed"]["learning_rate"] == 1e-5
    assert taken["by"] == "ada"
    assert as_json("jobs", "show", submitted)["effective"]["micro_batch_sequences"] == 1

    windlass("jobs", "pause", submitted, "--wait", "180")
    wait_until(lambda: bool(journal(folder, "paused")))
    assert as_json("jobs", "show", submitted)["state"] == "paused"
    windlass("jobs", "resume", submitted, "--wait", "180")
    step = journal(folder, "unpaused")[0]["step"]
    wait_until(lambda: journal(folder, "step")[-1]["step"] > step)

    undone = as_json("jobs", "undo", submitted, "--wait", "180")["taken"]
    assert undone["undoes"] == 1
    assert undone["changed"]["learning_rate"] is None
    assert as_json("jobs", "undo", submitted, "--wait", "180")["taken"]["changed"]["learning_rate"] == 1e-5
    windlass("jobs", "stop", submitted, "--wait", "120")
    stopped = as_json("jobs", "show", submitted)
    assert stopped["state"] == "stopped"
    assert [r["id"] for r in stopped["history"]] == [1, 2, 3, 4, 5, 6]
    (last,) = journal(folder, "stopped")

    windlass("jobs", "submit", "job.toml", "--workers", "2", "--resume", *LONG)
    wait_until(lambda: bool(journal(folder, "resumed")))
    assert journal(folder, "resumed")[0]["step"] == last["step"]
    again = as_json("jobs", "set", submitted, f"train.steps={last['step'] + 100000}", "--wait", "180")
    assert again["taken"]["changed"] == {"steps": last["step"] + 100000}
    assert as_json("jobs", "show", submitted)["effective"]["learning_rate"] == 1e-5
    assert "going on from step" in (folder / "home/runs/tiny/1/train.log").read_text()


def test_the_same_over_http(environment: dict[str, str], submitted: str, folder: Path) -> None:
    serve = [sys.executable, "-m", "windlass.cli", "control", "--port", "0", "--json"]
    with subprocess.Popen(serve, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "}\n")
        told = json.loads("".join(lines) + "}")
        with Jobs(told["url"], told["key"]) as jobs:
            request = jobs.set(submitted, {"train.log_every": 1})
            watched = jobs.watch(submitted)
            taken = next(record for record in watched if record["event"] == "settings")
            assert (taken["id"], taken["by"]) == (request["id"], "owner")
            jobs.stop(submitted)
            assert "stopped" in [record["event"] for record in watched], (
                "the stream goes to the end of the run"
            )
            assert jobs.show("tiny")["state"] == "stopped"
            assert jobs.audit("tiny")["samples_repeated"] == 0
        server.terminate()
