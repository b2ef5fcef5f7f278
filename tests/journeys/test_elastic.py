"""A run whose workers come and go by command, and whose coordinator dies again and again."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.lab.chaos.process_faults import Throttle

pytestmark = pytest.mark.slow

KILLS = 10
Journal = Callable[[str], list[dict[str, Any]]]
Wait = Callable[[Callable[[], bool]], None]


@pytest.fixture
def elastic(submit: Callable[..., str], journal: Journal, wait_until: Wait) -> str:
    """A run of one worker that takes steps."""
    run = submit("--elastic", "--workers", "1")
    wait_until(lambda: bool(journal("ledger")))
    return run


@contextmanager
def crawling(pid: int) -> Iterator[None]:
    """Let a process run a twentieth of the time, and stand still for longer than a step of the others."""
    throttle, over = Throttle(psutil.Process(pid), 0.05, 0.4), threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            throttle.tick(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        throttle.end()


def members(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "home/runs/tiny/1/members.json").read_bytes())
    return found


def test_a_run_grows_and_shrinks_by_command(
    windlass: Callable[..., Any],
    as_json: Callable[..., Any],
    elastic: str,
    journal: Journal,
    wait_until: Wait,
) -> None:
    for workers in (2, 4, 3, 1):
        windlass("jobs", "scale", elastic, str(workers), "--by", "ada", "--wait", "180")
        newest = journal("generation")[-1]
        assert len(newest["members"]) == workers
        assert newest["reason"]
        wait_until(lambda: journal("ledger")[-1]["generation"] == newest["generation"])  # noqa: B023
    windlass("jobs", "stop", elastic, "--wait", "120")
    assert {record["source"] for record in journal("settled")} == {"start", "memory"}
    assert [record["workers"] for record in journal("scaled")][-4:] == [2, 4, 3, 1]
    proof = as_json("jobs", "audit", elastic)
    assert proof["ok"]
    assert (proof["samples_lost"], proof["samples_repeated"], proof["rolled_back"]) == (0, 0, 0)


def test_the_steps_do_not_notice_that_ten_coordinators_die(
    windlass: Callable[..., Any],
    as_json: Callable[..., Any],
    elastic: str,
    folder: Path,
    journal: Journal,
    wait_until: Wait,
) -> None:
    windlass("jobs", "scale", elastic, "2", "--wait", "180")
    generations = len(journal("generation"))
    for _ in range(KILLS):
        led = len(journal("coordinator"))
        os.kill(members(folder)["coordinator"]["pid"], signal.SIGKILL)
        wait_until(lambda: len(journal("coordinator")) > led)  # noqa: B023
        step = journal("ledger")[-1]["steps"][1]
        wait_until(lambda: journal("ledger")[-1]["steps"][1] > step)  # noqa: B023
    assert len(journal("generation")) == generations
    assert not journal("lost")
    windlass("jobs", "stop", elastic, "--wait", "120")
    assert as_json("jobs", "audit", elastic)["ok"]


def test_a_worker_that_crawls_is_set_aside_and_replaced(
    windlass: Callable[..., Any],
    as_json: Callable[..., Any],
    submit: Callable[..., str],
    folder: Path,
    journal: Journal,
    wait_until: Wait,
) -> None:
    run = submit("--elastic", "--workers", "2", "--spares", "1", "--set", "elastic.deterministic=true")
    wait_until(lambda: bool(journal("ledger")))
    slow = next(worker for worker in members(folder)["workers"] if worker["rank"] == 1)
    with crawling(slow["pid"]):
        wait_until(lambda: bool(journal("lost")))
        (lost,) = journal("lost")
        assert (lost["worker"], lost["how"]) == (slow["worker"], "slow")
        assert "set aside for a spare" in lost["detail"]
        wait_until(lambda: journal("generation")[-1]["generation"] > lost["generation"])
    newest = journal("generation")[-1]
    assert len(newest["members"]) == 2
    assert slow["worker"] not in {member["worker"] for member in newest["members"]}
    wait_until(lambda: journal("ledger")[-1]["generation"] == newest["generation"])
    windlass("jobs", "stop", run, "--wait", "120")
    proof = as_json("jobs", "audit", run)
    assert (proof["ok"], proof["rolled_back"]) == (True, 0)
