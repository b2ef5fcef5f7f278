"""An agent, its fork server and its coordinators as real processes; the workers compute nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts(path="c", digest="d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)

WORKER = """
import json, os, sys, threading, time
from windlass.spec.protocol.entrypoint import error_event
from windlass.spec.protocol.elastic import ElasticHello
from windlass.spec.errors import BadInput
from windlass.train.elastic.coordinator_client import CoordinatorClient

def work(folder, worker, node, host, cores):
    behaviour = (folder / "behaviour").read_text()
    if behaviour == "crash":
        raise RuntimeError("a bug of ours")
    post = CoordinatorClient(folder, ElasticHello(role="worker", node=node, worker=worker, store=f"{host}:1"))
    step, why = 0, "new"
    while True:
        assigned = post.wait_for_assignment(step, why)
        if assigned is None:
            post.done("left")
            return 0
        if behaviour == "refuse":
            post.done("failed", error_event(BadInput("no such corpus", hint="name another")))
            return 2
        cut = threading.Event()
        post.on_abandon = cut.set
        while True:
            step += 1
            post.at(step, "step", 0.01)
            drain = post.drain_request
            if drain is not None and drain.stop:
                post.send_event({"event": "stopped", "step": step})
                post.done("stopped")
                return 0
            if (folder / "enough").exists():
                post.done("finished")
                return 0
            if drain is not None or cut.wait(0.02):
                why = "drain" if drain is not None else "abandoned"
                break
"""

AGENT = """
import json, sys
from pathlib import Path
from windlass.elastic.agent import Agent, AgentSite
from windlass.spec.errors import WindlassError
site = AgentSite(Path(sys.argv[1]), sys.argv[2], "127.0.0.1", entry="made_up_worker:work")
try:
    done = Agent(site, lambda event: print(json.dumps(event), flush=True)).run()
    print(json.dumps({"event": "outcome", "done": done}), flush=True)
except WindlassError as error:
    print(json.dumps({"event": "outcome", "error": str(error)}), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "made_up_worker.py").write_text(textwrap.dedent(WORKER))
    folder = tmp_path / "run"
    folder.mkdir()
    job = Job.model_validate(
        {
            "layout": {"dp": 2},
            "elastic": {"spares": 1},
            "model": {"layers": 2, "width": 64, "heads": 2},
            "train": {"steps": 10, "batch_sequences": 8},
        }
    )
    (folder / "run.json").write_text(plan_run(job, CORPUS, MACHINE).model_dump_json())
    (folder / "behaviour").write_text("train")
    return folder


@pytest.fixture(autouse=True)
def nothing_left_behind(folder: Path) -> Iterator[None]:
    yield
    await_that(lambda: not left_behind(folder), "the end of all processes of the run")


@contextlib.contextmanager
def agent(folder: Path, node: str = "node0") -> "Iterator[subprocess.Popen[bytes]]":
    """An agent in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder), node],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def left_behind(folder: Path) -> list[int]:
    """Return the processes that mention the run, beside this one."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [p.pid for p in found if str(folder) in (p.info["cmdline"] or []) and p.pid != os.getpid()]


def outcome_of(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    assert process.stdout is not None
    events = [json.loads(line) for line in process.stdout]
    assert process.wait(PATIENCE_S) == 0
    return dict(events[-1])


def await_that(fact: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < until, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def workers(folder: Path, state: str = "member") -> list[dict[str, Any]]:
    file = folder / "members.json"
    shown = json.loads(file.read_bytes()) if file.exists() else {"workers": []}
    return [worker for worker in shown["workers"] if worker["state"] == state]


def full(folder: Path) -> bool:
    return len(workers(folder)) == 2 and len(workers(folder, "spare")) == 1


def records(folder: Path, event: str) -> list[dict[str, Any]]:
    return [r for r in Journal(StoreDir(folder)).read() if r["event"] == event]


def test_a_killed_worker_is_followed_by_the_spare_and_replaced(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        victim, survivor = workers(folder)[1], workers(folder)[0]
        os.kill(victim["pid"], signal.SIGKILL)
        await_that(lambda: records(folder, "lost"), "the loss")
        await_that(lambda: full(folder), "two members and a spare again")
        assert survivor["pid"] in {worker["pid"] for worker in workers(folder)}
        (folder / "enough").touch()
        assert outcome_of(process) == {"event": "outcome", "done": True}
    (lost,) = records(folder, "lost")
    assert lost["worker"] == victim["worker"]
    assert lost["how"] in ("exit", "connection")


def test_a_frozen_worker_is_given_up_and_killed(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        victim = workers(folder)[1]
        os.kill(victim["pid"], signal.SIGSTOP)
        await_that(lambda: not psutil.pid_exists(victim["pid"]), "the end of the frozen one")
        await_that(lambda: full(folder), "two members and a spare again")
        (folder / "enough").touch()
        assert outcome_of(process)["done"] is True
    assert [r["how"] for r in records(folder, "lost")] == ["silent"]


def test_a_killed_fork_server_costs_no_worker(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        pids = {worker["pid"] for worker in workers(folder)}
        fork_server = psutil.Process(next(iter(pids))).parent()
        assert fork_server is not None
        fork_server.kill()
        os.kill(workers(folder, "spare")[0]["pid"], signal.SIGKILL)
        await_that(lambda: len(records(folder, "joined")) == 4, "a worker of another fork server")
        assert {worker["pid"] for worker in workers(folder)} == pids
        (folder / "enough").touch()
        assert outcome_of(process)["done"] is True


def test_killed_coordinators_are_followed_and_replaced(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        pids = {worker["pid"] for worker in workers(folder)}
        for epoch in (1, 2, 3):
            shown = json.loads((folder / "members.json").read_bytes())
            assert shown["epoch"] == epoch
            os.kill(shown["coordinator"]["pid"], signal.SIGKILL)
            await_that(lambda: _epoch(folder) > epoch and full(folder), "the next leader")  # noqa: B023
        assert {worker["pid"] for worker in workers(folder)} == pids
        (folder / "enough").touch()
        assert outcome_of(process)["done"] is True
    assert len(records(folder, "generation")) == 1
    assert records(folder, "lost") == []


def test_an_interrupted_run_stops_after_its_step(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        process.send_signal(signal.SIGINT)
        assert outcome_of(process) == {"event": "outcome", "done": False}


def test_a_dead_agent_takes_everything_with_it(folder: Path) -> None:
    with agent(folder) as process:
        await_that(lambda: full(folder), "two members and a spare")
        pids = [worker["pid"] for worker in (*workers(folder), *workers(folder, "spare"))]
        process.kill()
        await_that(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the end of the workers")


def test_a_mistake_of_the_user_ends_the_run_at_once(folder: Path) -> None:
    (folder / "behaviour").write_text("refuse")
    with agent(folder) as process:
        assert outcome_of(process)["error"] == "no such corpus\n    name another"


def test_workers_that_cannot_start_end_the_run_with_their_last_words(folder: Path) -> None:
    (folder / "behaviour").write_text("crash")
    with agent(folder) as process:
        assert "RuntimeError: a bug of ours" in outcome_of(process)["error"]


def test_two_machines_share_the_workers_and_one_continues_without_the_other(folder: Path) -> None:
    (folder / "workers.json").write_text(json.dumps({"id": 1, "workers": 3, "nodes": 2, "by": "me"}))
    with agent(folder, "node0") as first, agent(folder, "node1") as second:
        await_that(lambda: len(workers(folder)) == 3, "three members")
        assert {w["node"] for w in workers(folder)} == {"node0", "node1"}
        first.kill()
        await_that(lambda: _alone(folder, "node1"), "two members on the other machine")
        (folder / "enough").touch()
        assert outcome_of(second)["done"] is True


def _epoch(folder: Path) -> int:
    return int(json.loads((folder / "members.json").read_bytes())["epoch"])


def _alone(folder: Path, node: str) -> bool:
    return len(workers(folder)) == 2 and {w["node"] for w in workers(folder)} == {node}
