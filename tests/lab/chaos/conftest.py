"""A made-up run to hurt: a launcher, with workers and a coordinator that do nothing but live."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from windlass.lab.chaos.target import ChaosTarget

WORKERS = 3
LAUNCHER = """
import subprocess, sys
live = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(live) for _ in range(int(sys.argv[1]))]
print(*[child.pid for child in children], flush=True)
for child in children:
    child.wait()
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ChaosTarget]:
    """Three workers, one on each of three nodes; the launcher's last child plays the coordinator."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(WORKERS + 1)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pids = [int(word) for word in launcher.stdout.readline().split()]
    children = [psutil.Process(pid) for pid in pids]
    write_members(tmp_path, pids)
    try:
        yield ChaosTarget(tmp_path, lambda: [launcher.pid])
    finally:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        launcher.kill()
        launcher.communicate()


def write_members(folder: Path, pids: list[int]) -> None:
    workers = [
        {"worker": f"w{rank}", "node": str(rank), "pid": pid, "rank": rank, "state": "training"}
        for rank, pid in enumerate(pids[:-1])
    ]
    leader = {"pid": pids[-1], "node": "0"}
    body = {"epoch": 2, "coordinator": leader, "generation": 3, "workers": workers}
    (folder / "members.json").write_text(json.dumps(body))
