"""Runs one job file here and on a Ray cluster of three nodes that loses one, and renders it for Kubernetes.

    the tutorial's text and job -> train --backend local -> train --backend ray, then node 1 dies
    -> the same weights? -> kubernetes render, check

The commands are those that a user types, in separate processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pydoc_data.topics
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import windlass
from windlass.lab.proofs.backends.ray_nodes import RayNodes
from windlass.runs.tail import Tail
from windlass.spec.errors import AskedWrongly, ProcessFailed
from windlass.spec.processes import CLI
from windlass.spec.run import JOURNAL

JOB_FILE = "tutorial.toml"
NODES = 3
TRAINED_S = 900.0
"""Timeout of a run, in seconds."""
STRIKE_AFTER = 3
"""Number of step records after which a node is killed."""

JOB = f"""\
name = "tutorial"

[corpus]
sources = ["manual.txt"]
document = "paragraph"

[corpus.tokenizer]
vocabulary = 1024

[model]
layers = 2
width = 64
heads = 4
context = 64

[train]
steps = 200
batch_sequences = 6
evaluate_every = 200
log_every = 5

[layout]
dp = {NODES}

[elastic]
deterministic = true

[machine]
threads = 1
compile = "off"

[cluster]
nodes = {NODES}
image = "localhost/windlass"

[[cluster.volumes]]
mount = "/windlass"
claim = "windlass-home"
"""


def prove_backends(home: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the proof in HOME/prove/backends."""
    if not (Path(sys.executable).parent / "ray").exists():
        raise AskedWrongly("Ray is not installed here", hint="pip install 'windlass[ray]'")
    folder = home / "prove" / "backends"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "manual.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    (folder / JOB_FILE).write_text(JOB)
    began = time.monotonic()
    local = _json_of(folder, "train", JOB_FILE, "--backend", "local", "--json")
    local_s = time.monotonic() - began
    tell(f"local: loss {local['loss']:.6f}, {local_s:.0f} s")
    ray, lost, ray_s = _on_ray(folder, tell)
    tell(f"ray: loss {ray['loss']:.6f}, {lost} workers lost with a node, {ray_s:.0f} s")
    checked = _rendered(folder)
    tell(f"kubernetes: {checked['objects']} objects, {len(checked['versions'])} versions of the API")
    digests = [_digest(folder, number) for number in (1, 2)]
    return {
        "figures": {
            "local_loss": local["loss"],
            "ray_loss": ray["loss"],
            "same_bits": int(digests[0] == digests[1]),
            "nodes": NODES,
            "workers_lost": lost,
            "kubernetes_objects": checked["objects"],
            "kubernetes_versions": len(checked["versions"]),
            "kubernetes_refusals": len(checked["found"]),
            "local_s": local_s,
            "ray_s": ray_s,
        },
        "digests": {"local": digests[0], "ray": digests[1]},
    }


def is_equal(figures: Mapping[str, float]) -> bool:
    """Whether both runs have the same weights although one lost a node, and Kubernetes accepts the job."""
    taken = figures["kubernetes_objects"] and not figures["kubernetes_refusals"]
    return bool(figures["same_bits"] and figures["workers_lost"] and taken)


def _on_ray(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], int, float]:
    """Train on three nodes and kill one; return the printed result, the lost workers, and the seconds."""
    nodes = RayNodes(NODES, str(Path(windlass.__file__).parents[1]))
    try:
        tell(f"a Ray cluster of {NODES} nodes runs")
        address = ("--backend", "ray", "--set", f"cluster.address={nodes.address}")
        began = time.monotonic()
        process = subprocess.Popen(
            _command(folder, "train", JOB_FILE, *address, "--json"),
            cwd=folder,
            env={**os.environ, **nodes.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _await_steps(folder / "home/runs/tutorial/2" / JOURNAL, process)
            nodes.kill(1)
            tell("node 1 is killed")
            said, failed = process.communicate(timeout=TRAINED_S)
        finally:
            process.kill()
            process.wait()
    finally:
        nodes.close()
    return _parsed("train", process.returncode, said, failed), _lost(folder), time.monotonic() - began


def _await_steps(journal: Path, process: subprocess.Popen[str]) -> None:
    tail, steps, until = Tail(journal), 0, time.monotonic() + TRAINED_S
    while steps < STRIKE_AFTER and process.poll() is None and time.monotonic() < until:
        steps += sum(record.get("event") == "step" for record in tail.read())
        time.sleep(0.05)


def _lost(folder: Path) -> int:
    records = Tail(folder / "home/runs/tutorial/2" / JOURNAL).read()
    return sum(record.get("event") == "lost" for record in records)


def _rendered(folder: Path) -> dict[str, Any]:
    """Render the job file for a tenant, and check it as an API server would."""
    _run(folder, "kubernetes", "render", JOB_FILE, "--tenant", "proof", "--out", "manifests")
    return _json_of(folder, "kubernetes", "check", "manifests", "--json")


def _digest(folder: Path, version: int) -> str:
    weights = folder / "home/models/tutorial" / str(version) / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def _json_of(folder: Path, *words: str) -> dict[str, Any]:
    return _parsed(words[0], 0, _run(folder, *words), "")


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(_command(folder, *words), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessFailed(f"windlass {' '.join(words)} failed", hint=done.stderr.strip()[-500:])
    return done.stdout


def _parsed(verb: str, code: int, said: str, failed: str) -> dict[str, Any]:
    if code:
        raise ProcessFailed(f"windlass {verb} ended with {code}", hint=failed.strip()[-500:])
    result: dict[str, Any] = json.loads(said)
    return result


def _command(folder: Path, *words: str) -> list[str]:
    home = ["--home", str(folder / "home")] if words[0] == "train" else []
    return [sys.executable, "-m", CLI, *words, *home]
