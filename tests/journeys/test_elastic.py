"""A run whose workers come and go by command, and whose coordinator dies again and again."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.store.journal import Journal
from windlass.store.place import Place

pytestmark = pytest.mark.slow

LONG = (
    "machine.compile=off",
    "train.steps=200000",
    "train.evaluate_every=200000",
    "train.checkpoint_every=200000",
)
KILLS = 10


@pytest.fixture
def elastic(as_json: Callable[..., Any], folder: Path) -> Iterator[str]:
    """A run of one worker in the background; ended with the test, whatever happened."""
    settings = [word for setting in LONG for word in ("--set", setting)]
    told = as_json("jobs", "submit", "job.toml", "--elastic", "--workers", "1", *settings)
    try:
        wait_until(lambda: bool(journal(folder, "ledger")))
        yield told["run"]
    finally:
        for process in psutil.process_iter():
            if _launches(process, str(folder / "home")):
                process.terminate()


def _launches(process: psutil.Process, home: str) -> bool:
    """Whether a process is the launcher of this home: the others end with it."""
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


def test_a_run_grows_and_shrinks_by_command(
    windlass: Callable[..., Any], as_json: Callable[..., Any], elastic: str, folder: Path
) -> None:
    for workers in (2, 4, 3, 1):
        windlass("jobs", "scale", elastic, str(workers), "--by", "ada", "--wait", "180")
        newest = journal(folder, "generation")[-1]
        assert len(newest["members"]) == workers
        assert newest["reason"]
        wait_until(lambda: journal(folder, "ledger")[-1]["generation"] == newest["generation"])  # noqa: B023
    windlass("jobs", "stop", elastic, "--wait", "120")
    assert {record["source"] for record in journal(folder, "settled")} == {"start", "memory"}
    assert [record["workers"] for record in journal(folder, "scaled")][-4:] == [2, 4, 3, 1]
    proof = as_json("jobs", "audit", elastic)
    assert proof["ok"]
    assert (proof["samples_lost"], proof["samples_repeated"], proof["rolled_back"]) == (0, 0, 0)


def test_the_steps_do_not_notice_that_ten_coordinators_die(
    windlass: Callable[..., Any], as_json: Callable[..., Any], elastic: str, folder: Path
) -> None:
    windlass("jobs", "scale", elastic, "2", "--wait", "180")
    generations = len(journal(folder, "generation"))
    for _ in range(KILLS):
        led = len(journal(folder, "coordinator"))
        members = json.loads((folder / "home/runs/tiny/1/members.json").read_bytes())
        os.kill(members["coordinator"]["pid"], signal.SIGKILL)
        wait_until(lambda: len(journal(folder, "coordinator")) > led)  # noqa: B023
        step = journal(folder, "ledger")[-1]["steps"][1]
        wait_until(lambda: journal(folder, "ledger")[-1]["steps"][1] > step)  # noqa: B023
    assert len(journal(folder, "generation")) == generations
    assert not journal(folder, "lost")
    windlass("jobs", "stop", elastic, "--wait", "120")
    assert as_json("jobs", "audit", elastic)["ok"]
