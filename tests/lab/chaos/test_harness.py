"""An experiment over a real run: as short as one can be that still tells something."""

import os
import pydoc_data.topics
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from windlass.lab.chaos.baseline import ChaosRequest, trial_job
from windlass.lab.chaos.cleanup import clean
from windlass.lab.chaos.disk import mounted
from windlass.lab.chaos.harness import chaos
from windlass.lab.chaos.network import networks, why_no_network
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.protocol.progress import silent
from windlass.spec.read import read_job

JOB = """
name = "tiny"
[corpus]
sources = ["topics.txt"]
document = "paragraph"
validation_share = 0.2
[corpus.tokenizer]
vocabulary = 400
[model]
layers = 2
width = 32
heads = 2
context = 64
[train]
batch_sequences = 8
checkpoint_every = 20
[machine]
compile = "off"
threads = 1
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    texts = list(pydoc_data.topics.topics.values())[:20]
    (tmp_path / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def read(path: Path, *overrides: str) -> Job:
    return read_job(path, overrides)


def test_an_experiment_decides_the_length_and_the_name_of_the_job(job: Path) -> None:
    asked = ChaosRequest(read(job, "train.tokens=1M"), workers=4, spares=2)
    made = trial_job(asked, 70)
    assert (made.name, made.train.steps, made.train.tokens) == ("tiny-chaos", 70, None)
    assert (made.layout.dp, made.elastic.spares) == (4, 2)
    assert trial_job(ChaosRequest(made, workers=4, spares=2), 70) == made


def test_an_unfinished_run_is_no_reference(job: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "tiny" / "1").mkdir(parents=True)
    reference = RunFolder(tmp_path / "runs" / "tiny" / "1")
    with pytest.raises(BadInput, match="has not finished"):
        chaos(ChaosRequest(read(job), reference=reference), tmp_path, silent, lambda _line: None)


@pytest.mark.long
@pytest.mark.slow
def test_a_deterministic_run_under_fire_ends_with_the_same_bits(job: Path, tmp_path: Path) -> None:
    asked = ChaosRequest(
        read(job, "elastic.deterministic=true"),
        workers=2,
        seconds=20.0,
        every_s=4.0,
        seed=3,
        kinds=("kill", "coordinator", "freeze"),
    )
    report = chaos(asked, tmp_path / "home", silent, lambda _line: None)
    assert report.good, report.text
    figures = report.figures
    assert (figures["samples_lost"], figures["samples_repeated"]) == (0, 0)
    assert figures["weights_identical"] == 1
    assert figures["faults"] == len(report.body["faults"]) > 0
    assert figures["unrecovered"] == 0
    folder = tmp_path / "home" / "runs" / report.body["run"]
    assert (folder / "chaos.json").exists()
    assert (folder / "chaos.txt").read_text() == report.text
    assert not list((tmp_path / "home" / "chaos").iterdir())


def await_steps(home: Path, command: "subprocess.Popen[str]") -> None:
    """Wait until the first run of an experiment takes steps."""
    until = time.monotonic() + 120
    while not any('"ledger"' in path.read_text() for path in home.glob("runs/*/1/journal.jsonl")):
        assert command.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)


def started(job: Path, home: Path) -> "subprocess.Popen[str]":
    words = ["chaos", str(job), "--workers", "2", "--minutes", "5", "--home", str(home)]
    return subprocess.Popen(
        [sys.executable, "-m", "windlass.cli", *words, "--kinds", "kill,partition,disk"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def needs_machines() -> None:
    reason = why_no_network()
    if reason is not None:
        pytest.skip(reason)


def nothing_is_left(pid: int, family: list[psutil.Process]) -> bool:
    psutil.wait_procs(family, timeout=60)
    living = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    return not living and f"wlc{pid}" not in networks() and pid not in mounted().values()


@pytest.mark.slow
def test_an_interrupted_experiment_leaves_nothing_behind(job: Path, tmp_path: Path) -> None:
    needs_machines()
    with started(job, tmp_path / "home") as command:
        await_steps(tmp_path / "home", command)
        family = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=60)
    assert command.returncode == 130, said
    assert nothing_is_left(command.pid, family)


@pytest.mark.slow
def test_what_a_killed_experiment_leaves_behind_is_removed(job: Path, tmp_path: Path) -> None:
    needs_machines()
    with started(job, tmp_path / "home") as command:
        await_steps(tmp_path / "home", command)
        family = psutil.Process(command.pid).children(recursive=True)
        command.kill()
        command.communicate(timeout=60)
    assert f"wlc{command.pid}" in networks()
    removed = clean(tmp_path / "home")
    assert f"network wlc{command.pid}" in removed
    assert nothing_is_left(command.pid, family)
    assert not os.path.exists(tmp_path / "home" / "chaos" / str(command.pid))
