"""One job file on this machine and on a Ray of three nodes, one of which dies: the same bits."""

from __future__ import annotations

import importlib.util
import json
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import pytest

import windlass
from windlass.lab.proofs.backends.backends_proof import is_equal, prove_backends

pytestmark = pytest.mark.slow

JOB = """
name = "poems"

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
steps = 250
batch_sequences = 6
evaluate_every = 250
log_every = 5

[layout]
dp = 3

[elastic]
deterministic = true

[machine]
threads = 1
compile = "off"

[cluster]
nodes = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(Path(windlass.__file__).parents[1]))
    texts = list(pydoc_data.topics.topics.values())[:20]
    (tmp_path / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (tmp_path / "poems.toml").write_text(JOB)
    return tmp_path


def command(folder: Path, *more: str) -> list[str]:
    home = str(folder / "home")
    return [sys.executable, "-m", "windlass.cli", "train", "poems.toml", "--home", home, *more]


def trained(folder: Path, *more: str) -> dict[str, object]:
    """Train on this machine to the end; return what was printed."""
    asked = command(folder, "--backend", "local", "--json", *more)
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_the_same_job_ends_with_the_same_bits_here_and_on_a_ray_that_loses_a_node(tmp_path: Path) -> None:
    """As a user does it: the outputs are read as JSON, so nothing but that may be printed."""
    result = prove_backends(tmp_path, lambda _: None)
    figures = result["figures"]
    assert is_equal(figures), result
    assert figures["ray_loss"] == pytest.approx(figures["local_loss"], rel=1e-6), (
        "other sums of equal weights"
    )


def test_a_run_that_was_left_alone_continues_and_is_found_again(folder: Path) -> None:
    alone = ("--set", "cluster.nodes=1", "--set", "train.steps=60")
    assert trained(folder, *alone, "--detach")["run"] == "poems/1"
    assert trained(folder, *alone, "--resume")["model"] == "poems@1"
    assert len(list((folder / "home" / "runs" / "poems").glob("[0-9]*"))) == 1
    assert not list((folder / "home" / "cluster" / "default").glob("*/wanted.json"))
