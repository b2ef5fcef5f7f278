"""The proof and the bench of the control plane: that they count right, and run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from windlass.lab.proofs.control.control_bench import reconcile_jobs
from windlass.lab.proofs.control.control_proof import is_safe, prove_control
from windlass.lab.proofs.control.recording_job import EVENTS, OVER

RECORDING_JOB = [sys.executable, "-m", "windlass.lab.proofs.control.recording_job"]


def test_a_witness_works_once_however_often_it_is_launched(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([*RECORDING_JOB, str(tmp_path / "w"), "0.01"], check=True)
    told = [line.split()[0] for line in (tmp_path / "w" / EVENTS).read_text().splitlines()]
    assert told == ["began", "ended", "again"]
    assert (tmp_path / "w" / OVER).exists()


def test_what_is_lost_twice_or_late_is_not_safe() -> None:
    good = {"lost": 0, "run_twice": 0, "overlaps": 0, "failover_worst_s": 2.0}
    assert is_safe(good)
    for name, value in (("lost", 1), ("run_twice", 1), ("overlaps", 1), ("failover_worst_s", 6.0)):
        assert not is_safe({**good, name: value})


def test_the_bench_brings_every_job_to_its_end_once(tmp_path: Path) -> None:
    figures = reconcile_jobs(tmp_path, jobs=40, nodes=5, report=lambda _: None)
    assert figures["run_twice"] == 0
    assert figures["steps"] > 1


@pytest.mark.long
@pytest.mark.slow
def test_killed_control_processes_lose_no_job(tmp_path: Path) -> None:
    result = prove_control(tmp_path, 2, lambda _: None, seed=3)
    figures = result["figures"]
    assert figures["jobs"] > 0
    assert [figures[name] for name in ("lost", "run_twice", "overlaps", "groups_left")] == [0, 0, 0, 0]
    assert result["wrong"] == []
