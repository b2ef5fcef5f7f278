"""One job file on this machine and on a Ray of three nodes, one of which dies: the same bits."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass
from tests.cluster.ray_nodes import RayNodes

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


def journal(folder: Path, run: int) -> Iterator[dict[str, object]]:
    file = folder / "home" / "runs" / "poems" / str(run) / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    yield from (json.loads(line) for line in lines if line.endswith(b"\n"))


def test_the_same_job_ends_with_the_same_bits_here_and_on_a_ray_that_loses_a_node(
    folder: Path, ray_nodes: RayNodes
) -> None:
    here = trained(folder)
    dead = ray_nodes.host(1)
    process = subprocess.Popen(
        command(folder, "--backend", "ray", "--set", f"cluster.address={ray_nodes.address}"),
        cwd=folder,
        env={**os.environ, **ray_nodes.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not any(record["event"] == "step" for record in journal(folder, 2)):
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    ray_nodes.kill(1)
    try:
        told = process.communicate(timeout=240)[0]
    finally:
        process.kill()
        ray_nodes.add(1)
    assert process.returncode == 0, told
    lost = [record for record in journal(folder, 2) if record["event"] == "lost"]
    assert lost, f"nobody was at {dead}:\n{told}"
    models = folder / "home" / "models" / "poems"
    assert f"validation loss {here['loss']:.4f}" in told
    one, other = (models / number / "model.safetensors" for number in ("1", "2"))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_that_was_left_alone_goes_on_and_is_found_again(folder: Path) -> None:
    alone = ("--set", "cluster.nodes=1", "--set", "train.steps=60")
    assert trained(folder, *alone, "--detach")["run"] == "poems/1"
    assert trained(folder, *alone, "--resume")["model"] == "poems@1"
    assert len(list((folder / "home" / "runs" / "poems").glob("[0-9]*"))) == 1
    assert not list((folder / "home" / "cluster" / "default").glob("*/wanted.json"))
