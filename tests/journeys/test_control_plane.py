"""Two control planes, one machine, two jobs: one makes room for the other, the leader dies, both finish."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.cluster.backends import LOCAL
from windlass.cluster.local.local_backend import LocalBackend
from windlass.registry.versions import Registry
from windlass.runs.run_settings import request_settings
from windlass.runs.training import runs_of
from windlass.sdk.queue import Queue

pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
BUSY = "train.batch_sequences=64"
"""So that steps are slow enough to be interrupted between two of them."""
LONG = (
    "train.steps=200000",
    "train.evaluate_every=200000",
    "train.checkpoint_every=200000",
    "train.warmup_steps=1",
    BUSY,
)
SHORT = ("train.steps=2",)
MORE = 30
"""Steps to end after, once it was seen to have gone on."""
WHOLE = f"\n[cluster]\ncores = {len(os.sched_getaffinity(0))}\n"
"""A job that wants the machine to itself."""


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]]:
    """Start `windlass control` for one home, as often as asked, and end what is left."""
    begun: list[subprocess.Popen[str]] = []

    def control() -> tuple[subprocess.Popen[str], dict[str, Any]]:
        command = [sys.executable, "-m", "windlass.cli", "control", "--home", "home", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--min-run", "1s", "--json"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        begun.append(process)
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        return process, json.loads("".join(lines) + "}")

    yield control
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
    backend = LocalBackend(folder / "home" / LOCAL)
    for standing in backend.survey().groups:
        backend.stop(standing.group.key)


def until(queue: Queue, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE_S
    while not holds(job := queue.show(name)):
        assert time.monotonic() < end, f"{job}\n{queue.events(name)}"
        time.sleep(0.1)
    return job


def test_a_job_makes_room_for_a_more_urgent_one_and_continues_under_another_leader(
    folder: Path,
    start: Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]],
    windlass: Callable[..., Any],
    environment: dict[str, str],
) -> None:
    leader, told = start()
    _, other = start()
    environment |= {
        "WINDLASS_CONTROL": f"{told['url']},{other['url']}",
        "WINDLASS_CONTROL_KEY": told["key"],
    }
    (folder / "job.toml").write_text((folder / "job.toml").read_text() + WHOLE)
    windlass("jobs", "submit", "job.toml", *settings_of(LONG))
    with Queue([told["url"], other["url"]], told["key"]) as queue:
        until(queue, "tiny", lambda _: _steps(queue) >= 3)
        windlass("jobs", "submit", "job.toml", "--priority", "5", *settings_of(("name=urgent", *SHORT)))
        until(queue, "tiny", lambda job: job["phase"] in ("preempting", "queued"))
        leader.send_signal(signal.SIGKILL)
        until(queue, "urgent", lambda job: job["phase"] == "done")
        (run,) = runs_of(folder / "home", "tiny")
        saved = run.step
        assert saved >= 3, "it saved when it was asked to make room"
        until(queue, "tiny", lambda _: _steps(queue) > saved)
        request_settings(run, [f"train.steps={_steps(queue) + MORE}"])
        until(queue, "tiny", lambda job: job["phase"] == "done")
        assert queue.show("tiny")["preemptions"] == 1
        assert queue.show("urgent")["preemptions"] == 0
        assert queue.plane()["epoch"] == 2
        settled = [record["step"] for record in queue.journal("tiny") if record["event"] == "settled"]
        assert settled == [0, saved], "it went on from what it had saved"
        what = [event["what"] for event in queue.events("tiny")]
        assert any(each.startswith("is preempted") for each in what)
        assert "default/tiny" in windlass("jobs", "list").stdout
    for name in ("tiny", "urgent"):
        (run,) = runs_of(folder / "home", name)
        assert run.finished
        assert len(Registry(folder / "home").versions(name)) == 1


def settings_of(settings: tuple[str, ...]) -> list[str]:
    return [part for each in settings for part in ("--set", each)]


def _steps(queue: Queue) -> int:
    steps = [record["step"] for record in queue.journal("tiny") if record["event"] == "step"]
    return int(steps[-1]) if steps else 0
