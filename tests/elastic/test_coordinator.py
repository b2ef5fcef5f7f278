"""Coordinators as processes, over real sockets, with made-up workers that follow their orders."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job
from windlass.spec.protocol.elastic import COORDINATOR, MEMBERS, OVER, ElasticHello
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.store.journal import Journal
from windlass.store.lease import leader
from windlass.store.store_dir import StoreDir
from windlass.train.elastic.coordinator_client import CoordinatorClient

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts(path="c", digest="d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)


class MadeUp:
    """A worker without a model: counts steps until it is drained, aborts at once, and records it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.generations: list[int] = []
        self.abandoned: list[int] = []
        self.ended = threading.Event()
        self.enough = threading.Event()
        self._cut = threading.Event()
        self._post = CoordinatorClient(
            folder, ElasticHello(role="worker", node="node0", worker=name, store="127.0.0.1:1")
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def vanish(self) -> None:
        """Die as a process does: its connection is closed by the system."""
        self.ended.set()
        self._post._ended.set()

    def _work(self) -> None:
        step, why = 0, "new"
        while not self.ended.is_set():
            assigned = self._post.wait_for_assignment(step, why)
            if assigned is None:
                self._post.done("left")
                return
            self._cut.clear()
            self._post.on_abandon = self._cut.set
            self.generations.append(assigned.generation)
            step, why = self._train(step)

    def _train(self, step: int) -> tuple[int, str]:
        while not self.ended.is_set():
            if self._cut.wait(0.02):
                self.abandoned.append(self.generations[-1])
                return step, "abandoned"
            step += 1
            self._post.at(step, "step", 0.01)
            drain = self._post.drain_request
            if self.enough.is_set() or (drain is not None and drain.stop):
                self._post.done("finished" if self.enough.is_set() else "stopped")
                self.ended.set()
            elif drain is not None:
                return step, "drain"
        return step, "ended"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = Job.model_validate(
        {
            "layout": {"dp": 2},
            "elastic": {"spares": 1},
            "model": {"layers": 2, "width": 64, "heads": 2},
            "train": {"steps": 10, "batch_sequences": 8},
        }
    )
    (tmp_path / RUN_FILE).write_text(plan_run(job, CORPUS, MACHINE).model_dump_json())
    return tmp_path


@contextlib.contextmanager
def coordinators(folder: Path, count: int = 1) -> "Iterator[list[subprocess.Popen[bytes]]]":
    started = [_start(folder) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    module = "windlass.elastic.coordinator"
    return subprocess.Popen(
        [sys.executable, "-m", module, str(folder), "--node", "node0", "--host", "127.0.0.1"]
    )


def records(folder: Path, event: str) -> list[dict[str, Any]]:
    return [r for r in Journal(StoreDir(folder), JOURNAL).read() if r["event"] == event]


def members(folder: Path) -> dict[str, Any]:
    file = folder / MEMBERS
    return dict(json.loads(file.read_bytes())) if file.exists() else {"workers": [], "epoch": 0, "stage": ""}


def await_that(fact: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < until, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def trained_together(folder: Path, workers: list[MadeUp]) -> Callable[[], bool]:
    """Return whether exactly these workers are in the steps of one generation."""

    def fact() -> bool:
        at = members(folder)
        inside = {w["worker"] for w in at["workers"] if w["rank"] is not None and w["state"] == "member"}
        same = {w.generations[-1] for w in workers if w.generations} == {at.get("generation")}
        return at["stage"] == "running" and inside == {w.name for w in workers} and same

    return fact


def test_workers_that_say_hello_form_a_generation_and_finish(folder: Path) -> None:
    with coordinators(folder) as (process,):
        workers = [MadeUp(folder, name) for name in ("a", "b")]
        await_that(trained_together(folder, workers), "a generation of both")
        for worker in workers:
            worker.enough.set()
        assert process.wait(PATIENCE_S) == 0
    assert json.loads((folder / OVER).read_bytes())["outcome"] == "finished"
    (generation,) = records(folder, "generation")
    assert {m["worker"] for m in generation["members"]} == {"a", "b"}
    assert generation["layout"]["dp"] == 2


def test_a_lost_member_is_replaced_by_a_spare_and_survivors_keep_their_process(folder: Path) -> None:
    with coordinators(folder):
        a, b = MadeUp(folder, "a"), MadeUp(folder, "b")
        await_that(trained_together(folder, [a, b]), "a generation of a and b")
        spare = MadeUp(folder, "c")
        await_that(lambda: len(members(folder)["workers"]) == 3, "the spare")
        b.vanish()
        await_that(trained_together(folder, [a, spare]), "a generation of a and the spare")
        (lost,) = records(folder, "lost")
        assert (lost["worker"], lost["how"], lost["generation"]) == ("b", "connection", 1)
        assert a.abandoned == [1]
        assert spare.abandoned == []


def test_a_run_is_scaled_by_a_file(folder: Path) -> None:
    with coordinators(folder):
        workers = [MadeUp(folder, name) for name in "ab"]
        await_that(trained_together(folder, workers), "a generation of two")
        StoreDir(folder).write("workers.json", json.dumps({"id": 1, "workers": 4, "by": "me"}).encode())
        await_that(lambda: records(folder, "scaled"), "the request to be seen")
        workers += [MadeUp(folder, name) for name in "cd"]
        await_that(trained_together(folder, workers), "a generation of four")
        StoreDir(folder).write("workers.json", json.dumps({"id": 2, "workers": 1, "by": "me"}).encode())
        await_that(lambda: len(records(folder, "left")) == 2, "two to be dismissed")
        assert [r["workers"] for r in records(folder, "scaled")] == [4, 1]
        assert len(records(folder, "generation")[-1]["members"]) == 1
    assert all(worker.abandoned == [] for worker in workers)


def test_a_run_without_enough_workers_waits_and_says_why(folder: Path) -> None:
    run = json.loads((folder / RUN_FILE).read_text())
    run["job"]["elastic"]["min_workers"] = 2
    (folder / RUN_FILE).write_text(json.dumps(run))
    with coordinators(folder):
        first = MadeUp(folder, "a")
        await_that(lambda: records(folder, "waiting"), "a reason to wait")
        assert "needs at least 2" in records(folder, "waiting")[0]["reason"]
        second = MadeUp(folder, "b")
        await_that(trained_together(folder, [first, second]), "a generation of both")


@pytest.mark.slow
def test_the_leader_is_killed_ten_times_and_members_never_notice(folder: Path) -> None:
    with coordinators(folder, 2) as processes:
        workers = [MadeUp(folder, name) for name in ("a", "b")]
        await_that(trained_together(folder, workers), "a generation of both")
        for _ in range(10):
            claim = leader(StoreDir(folder / COORDINATOR))
            assert claim is not None
            pid = int(claim.holder.partition("/")[2])
            os.kill(pid, signal.SIGKILL)
            processes.append(_start(folder))
            await_that(_led_after(folder, claim.epoch), f"a leader after epoch {claim.epoch}")
        for worker in workers:
            worker.enough.set()
        await_that((folder / OVER).exists, "the end of the run")
    assert [worker.generations for worker in workers] == [[1], [1]]
    assert [worker.abandoned for worker in workers] == [[], []]
    assert records(folder, "lost") == []
    assert len(records(folder, "coordinator")) == 11


@pytest.mark.slow
def test_what_a_dead_leader_wrote_down_is_carried_on_by_the_next(folder: Path) -> None:
    with coordinators(folder, 2) as processes:
        a, b, spare = (MadeUp(folder, name) for name in ("a", "b", "c"))
        await_that(lambda: len(members(folder)["workers"]) == 3, "two members and a spare")
        inside = [w["worker"] for w in members(folder)["workers"] if w["rank"] is not None]
        lost, kept = (next(w for w in (a, b, spare) if w.name == name) for name in inside)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        lost.vanish()
        record = {"event": "lost", "time": 0.0, "worker": lost.name, "node": "node0", "generation": 1}
        Journal(StoreDir(folder)).append(record)
        for process in processes:
            process.kill()
        processes.append(_start(folder))
        others = [w for w in (a, b, spare) if w is not lost]
        await_that(trained_together(folder, others), "a generation of the others")
        assert len(records(folder, "lost")) == 1
        assert kept.abandoned == [1]


@pytest.mark.slow
def test_a_frozen_leader_that_wakes_finds_another_leader_and_changes_nothing(folder: Path) -> None:
    with coordinators(folder, 2) as processes:
        workers = [MadeUp(folder, name) for name in ("a", "b")]
        await_that(trained_together(folder, workers), "a generation of both")
        claim = leader(StoreDir(folder / COORDINATOR))
        assert claim is not None
        pid = int(claim.holder.partition("/")[2])
        os.kill(pid, signal.SIGSTOP)
        await_that(_led_after(folder, claim.epoch), "another leader")
        os.kill(pid, signal.SIGCONT)
        for worker in workers:
            worker.enough.set()
        for process in processes:
            assert process.wait(PATIENCE_S) == 0
    assert [worker.abandoned for worker in workers] == [[], []]
    assert records(folder, "lost") == []


def _led_after(folder: Path, epoch: int) -> Callable[[], bool]:
    """Return whether a later leader has both members back."""

    def fact() -> bool:
        at = members(folder)
        states = [w["state"] for w in at["workers"]]
        return at["epoch"] > epoch and states == ["member", "member"]

    return fact
