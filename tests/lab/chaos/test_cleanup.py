import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from windlass.lab.chaos.cleanup import clean
from windlass.lab.chaos.network import networks, why_no_network


def gone_pid() -> int:
    """Return the number of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_clean_machine_has_no_leftovers(tmp_path: Path) -> None:
    assert clean(tmp_path) == []


def test_processes_of_an_experiment_that_was_killed_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "chaos" / str(gone_pid())
    folder.mkdir(parents=True)
    left = subprocess.Popen(["sleep", "600"])
    other = subprocess.Popen(["sleep", "600"])
    born = psutil.Process(left.pid).create_time()
    (folder / "processes.json").write_text(json.dumps([[left.pid, born], [other.pid, born - 3600]]))
    try:
        removed = clean(tmp_path)
        assert f"process {left.pid}" in removed
        assert not psutil.pid_exists(left.pid)
        assert other.poll() is None
        assert not folder.exists()
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_a_running_experiment_is_left_alone(tmp_path: Path) -> None:
    living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "windlass"])
    try:
        folder = tmp_path / "chaos" / str(living.pid)
        folder.mkdir(parents=True)
        assert clean(tmp_path) == []
        assert folder.exists()
    finally:
        living.kill()
        living.wait()


def test_networks_of_an_experiment_that_was_killed_are_removed(tmp_path: Path) -> None:
    if why_no_network() is not None:
        pytest.skip(why_no_network() or "")
    name = f"wlc{gone_pid()}"
    subprocess.run(["ip", "netns", "add", f"{name}-0"], check=True)
    subprocess.run(["ip", "link", "add", f"{name}n", "type", "bridge"], check=True)
    inside = subprocess.Popen(["ip", "netns", "exec", f"{name}-0", "sleep", "600"])
    try:
        while not os.path.exists(f"/proc/{inside.pid}/cwd") or psutil.Process(inside.pid).name() != "sleep":
            pass
        assert f"network {name}" in clean(tmp_path)
        assert name not in networks()
        assert not psutil.pid_exists(inside.pid)
    finally:
        inside.kill()
        inside.wait()
