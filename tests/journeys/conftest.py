"""Stories told through the command line, as a user would: real processes, a home of their own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

LONG = ("train.steps=200000", "train.evaluate_every=200000", "train.checkpoint_every=200000")
"""For a run that goes on until somebody stops it."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]

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
steps = 40
batch_sequences = 8
evaluate_every = 20
checkpoint_every = 10
sample_prompts = ["The "]

[machine]
threads = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a small text and a job on it."""
    import pydoc_data.topics

    texts = list(pydoc_data.topics.topics.values())[:20]
    (tmp_path / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "WINDLASS_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def windlass(folder: Path, environment: dict[str, str]) -> Run:
    """Run the command line to its end."""

    def run(*args: str, code: int = 0, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command(*args),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def as_json(windlass: Run) -> Callable[..., Any]:
    """Run a command with --json and return what it printed."""
    return lambda *args, **options: json.loads(windlass(*args, "--json", **options).stdout)


@pytest.fixture
def submit(as_json: Callable[..., Any], folder: Path) -> Iterator[Callable[..., str]]:
    """Start a long run in the background; it is ended with the test, whatever happened."""
    settings = [word for setting in ("machine.compile=off", *LONG) for word in ("--set", setting)]
    yield lambda *args: as_json("jobs", "submit", "job.toml", *args, *settings)["run"]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = process.cmdline()
            if "train" in arguments and str(folder / "home") in arguments:
                process.terminate()  # the launcher; the others end with it


@pytest.fixture
def journal(folder: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Return the records of a kind that the run wrote so far."""
    place = StoreDir(folder / "home" / "runs" / "tiny" / "1")
    return lambda event: [record for record in Journal(place).read() if record["event"] == event]


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    def wait(seen: Callable[[], bool]) -> None:
        for _ in range(1800):
            if seen():
                return
            time.sleep(0.1)
        raise AssertionError("it did not happen within three minutes")

    return wait


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "windlass.cli", *args]
