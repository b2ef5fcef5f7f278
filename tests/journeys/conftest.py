"""Stories told through the command line, as a user would: real processes, a home of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "windlass.cli", *args]
