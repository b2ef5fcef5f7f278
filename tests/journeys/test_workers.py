"""Runs on several processes and machines, told through the command line."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.lab.proofs.launch_proof import prove_kills

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
AsJson = Callable[..., Any]
Environment = dict[str, str]
PATIENCE_S = 240.0


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "windlass.cli", *args]


@contextlib.contextmanager
def started(
    folder: Path, environment: Environment, *args: str, within: tuple[str, ...] = ()
) -> Iterator["subprocess.Popen[str]"]:
    """A command that goes on while the block looks at it; `within` is how to enter another machine."""
    process = subprocess.Popen(
        [*within, *command(*args)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def await_checkpoint(folder: Path, process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + PATIENCE_S
    while not list(folder.glob("home/runs/*/1/checkpoints/step-*/manifest.json")):
        assert time.monotonic() < until, sorted(folder.glob("home/runs/*/1/**"))
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.05)


def ranks_of(launcher: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process(launcher.pid).children(recursive=True):
        words = child.cmdline()
        if "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = child
    return found


def events_of(folder: Path) -> list[dict[str, Any]]:
    (journal,) = folder.glob("home/runs/tiny/1/journal.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_two_workers_end_where_one_does(as_json: AsJson, folder: Path) -> None:
    alone = as_json("train", "job.toml")
    both = as_json("train", "job.toml", "--workers", "2")
    assert both["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    run = json.loads((folder / "home/runs/tiny/2/run.json").read_text())
    assert run["layout"]["dp"] == 2
    assert (folder / "home/runs/tiny/2/logs/rank-1.log").exists()


def test_a_stopped_run_continues_under_another_layout(
    as_json: AsJson, folder: Path, environment: Environment
) -> None:
    options = ("train", "job.toml", "--set", "train.steps=300")
    with started(folder, environment, *options, "--workers", "2") as process:
        await_checkpoint(folder, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    assert "--resume --workers 2" in said
    resumed = as_json(*options, "--resume")
    assert resumed["step"] == 300
    assert [e["event"] for e in events_of(folder)].count("resumed") == 1
    assert json.loads((folder / "home/runs/tiny/1/run.json").read_text())["layout"]["dp"] == 1


def test_a_killed_rank_is_named_and_a_restart_continues(folder: Path, environment: Environment) -> None:
    options = ("train", "job.toml", "--set", "train.steps=100000", "--workers", "2", "--restarts", "1")
    with started(folder, environment, *options) as process:
        await_checkpoint(folder, process)
        first = ranks_of(process)
        first[1].kill()
        until = time.monotonic() + PATIENCE_S
        while not any(e["event"] == "resumed" for e in events_of(folder)):
            assert process.poll() is None
            assert time.monotonic() < until, events_of(folder)
            time.sleep(0.05)
        second = ranks_of(process)
        assert {p.pid for p in second.values()}.isdisjoint(p.pid for p in first.values())
        second[0].kill()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "rank 1 was killed by SIGKILL" in said
    assert "starting again from step" in said
    assert said.rindex("windlass: rank 0 was killed by SIGKILL") > said.index("rank 1 was killed")
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in second.values())


def test_ranks_do_not_outlive_a_killed_launcher(folder: Path, environment: Environment) -> None:
    with started(
        folder, environment, "train", "job.toml", "--set", "train.steps=30000", "--workers", "2"
    ) as process:
        await_checkpoint(folder, process)
        ranks = ranks_of(process)
        assert sorted(ranks) == [0, 1]
    gone, alive = psutil.wait_procs(list(ranks.values()), timeout=PATIENCE_S)
    assert (len(gone), alive) == (2, [])


@pytest.mark.long
def test_kills_at_random_moments_leave_a_whole_run(tmp_path: Path) -> None:
    figures = prove_kills(tmp_path, 3, lambda _line: None, seed=7)["figures"]
    assert figures["kills"] == figures["named"] == 3
    assert figures["whole_checkpoints"] == 3
    assert figures["orphans"] == 0


def test_a_layout_that_cannot_be_is_refused(windlass: Run) -> None:
    said = windlass("train", "job.toml", "--layout", "dp=2", "--workers", "3", code=2).stderr
    assert "--workers 3 makes 3 processes, but layout dp=2 has 2" in said


@pytest.fixture
def machines() -> Iterator[list[tuple[str, ...]]]:
    """Two machines with a cable between them: how to enter each. Their addresses are 10.77.0.1 and .2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the `ip` of iproute2")
    names = [f"windlass-{os.getpid()}-{side}" for side in "ab"]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this system makes no network namespaces: {made.stderr.strip()}")
    ends = [f"wl{os.getpid()}{side}" for side in "ab"]
    try:
        ip("netns", "add", names[1])
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [("ip", "netns", "exec", name) for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def test_two_machines_end_where_one_process_does(
    as_json: AsJson, folder: Path, environment: Environment, machines: list[tuple[str, ...]]
) -> None:
    alone = as_json("train", "job.toml")
    options = ("train", "job.toml", "--workers", "1", "--nodes", "2", "--rendezvous", "10.77.0.1:29400")
    with (
        started(folder, environment, *options, "--json", within=machines[0]) as node_0,
        started(folder, environment, *options, "--node-rank", "1", within=machines[1]) as node_1,
    ):
        told, said_0 = node_0.communicate(timeout=PATIENCE_S)
        assert node_0.returncode == 0, said_0
        _, said_1 = node_1.communicate(timeout=PATIENCE_S)
        assert node_1.returncode == 0, said_1
    assert json.loads(told)["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert "node 1: ranks 1 of 2 run in" in said_1


@pytest.mark.long
def test_a_cut_cable_ends_the_run_on_both_machines(
    folder: Path, environment: Environment, machines: list[tuple[str, ...]]
) -> None:
    options = ("train", "job.toml", "--workers", "1", "--nodes", "2", "--rendezvous", "10.77.0.1:29400")
    options += ("--set", "train.steps=100000")
    with (
        started(folder, environment, *options, within=machines[0]) as node_0,
        started(folder, environment, *options, "--node-rank", "1", within=machines[1]) as node_1,
    ):
        await_checkpoint(folder, node_0)
        ip("-n", machines[1][-1], "link", "set", f"wl{os.getpid()}b", "down")
        _, said_0 = node_0.communicate(timeout=PATIENCE_S)
        _, said_1 = node_1.communicate(timeout=PATIENCE_S)
    assert (node_0.returncode, node_1.returncode) == (1, 1)
    assert "node 1 (10.77.0.2) disconnected" in said_0
    assert "lost node 0 (10.77.0.1)" in said_1
