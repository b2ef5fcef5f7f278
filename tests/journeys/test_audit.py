"""A run is killed, goes on, and proves that it used every sample exactly once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_killed_run_continues_and_its_audit_passes(
    windlass: Run, folder: Path, environment: dict[str, str]
) -> None:
    job = (folder / "job.toml").read_text().replace("steps = 40", "steps = 300")
    (folder / "job.toml").write_text(job)
    training = subprocess.Popen(
        [sys.executable, "-m", "windlass.cli", "train", "job.toml"],
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    run = folder / "home" / "runs" / "tiny" / "1"
    while not list(run.glob("checkpoints/step-*/manifest.json")):
        assert training.poll() is None
        time.sleep(0.02)
    os.killpg(training.pid, signal.SIGKILL)
    training.wait()
    windlass("train", "job.toml", "--resume")
    facts: dict[str, Any] = json.loads(windlass("jobs", "audit", "tiny", "--json").stdout)
    assert (facts["ok"], facts["samples_lost"], facts["samples_repeated"]) == (True, 0, 0)
    assert (facts["samples_used"], facts["steps"]) == (2400, 300)
    shown = json.loads(windlass("jobs", "show", "tiny", "--json").stdout)
    assert shown["goodput"]["measured"]
    assert sum(shown["goodput"]["shares"].values()) == pytest.approx(1.0, abs=0.001)
