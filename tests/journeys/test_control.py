"""A run that is changed while it goes on, from the command line and over HTTP."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.sdk.jobs import Jobs

pytestmark = pytest.mark.slow

Journal = Callable[[str], list[dict[str, Any]]]
Wait = Callable[[Callable[[], bool]], None]


@pytest.fixture
def submitted(submit: Callable[..., str], journal: Journal, wait_until: Wait) -> str:
    """A run of two processes that takes steps."""
    run = submit("--workers", "2")
    wait_until(lambda: bool(journal("step")))
    return run


def test_a_submitted_run_is_changed_paused_undone_stopped_and_resumed(
    windlass: Callable[..., Any],
    as_json: Callable[..., Any],
    submit: Callable[..., str],
    submitted: str,
    folder: Path,
    journal: Journal,
    wait_until: Wait,
) -> None:
    asked = ("train.learning_rate=1e-5", "train.micro_batch_sequences=1", "sync.policy=local", "sync.every=5")
    taken = as_json("jobs", "set", submitted, *asked, "--by", "ada", "--wait", "180")["taken"]
    assert taken["changed"]["learning_rate"] == 1e-5
    assert taken["by"] == "ada"
    assert as_json("jobs", "show", submitted)["effective"]["micro_batch_sequences"] == 1

    windlass("jobs", "pause", submitted, "--wait", "180")
    wait_until(lambda: bool(journal("paused")))
    assert as_json("jobs", "show", submitted)["state"] == "paused"
    windlass("jobs", "resume", submitted, "--wait", "180")
    step = journal("unpaused")[0]["step"]
    wait_until(lambda: journal("step")[-1]["step"] > step)

    undone = as_json("jobs", "undo", submitted, "--wait", "180")["taken"]
    assert undone["undoes"] == 1
    assert undone["changed"]["learning_rate"] is None
    assert as_json("jobs", "undo", submitted, "--wait", "180")["taken"]["changed"]["learning_rate"] == 1e-5
    windlass("jobs", "stop", submitted, "--wait", "120")
    stopped = as_json("jobs", "show", submitted)
    assert stopped["state"] == "stopped"
    assert [r["id"] for r in stopped["history"]] == [1, 2, 3, 4, 5, 6]
    (last,) = journal("stopped")

    submit("--workers", "2", "--resume")
    wait_until(lambda: bool(journal("resumed")))
    assert journal("resumed")[0]["step"] == last["step"]
    again = as_json("jobs", "set", submitted, f"train.steps={last['step'] + 100000}", "--wait", "180")
    assert again["taken"]["changed"] == {"steps": last["step"] + 100000}
    assert as_json("jobs", "show", submitted)["effective"]["learning_rate"] == 1e-5
    assert "resuming from step" in (folder / "home/runs/tiny/1/train.log").read_text()


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
