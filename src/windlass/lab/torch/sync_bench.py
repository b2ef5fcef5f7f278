"""Bytes sent and loss reached by each sync policy, compared with every-step.

A tiny Llama is trained on a part of Python's source, with two processes of one core each. All runs start from
the same weights, use the same samples in the same order and the same number of steps; only the policy
differs. The batch is large for the model: if gradients were mostly noise, a replica with half of the batch
would fall behind under any policy.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from windlass.lab.torch.train_bench import bench_corpus, planned
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import ProcessFailed
from windlass.spec.job import Job, MachineSpec, ModelSpec, Train
from windlass.spec.layout import Layout
from windlass.spec.processes import TRAIN
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.spec.sync import Sync
from windlass.train.loop import save_run

WORLD = 2
EVERY = 50
STEPS = 1000
MOMENTUM = 0.6
"""Momentum of the outer optimizer. The paper's 0.9 averages ten outer steps, half of the whole run here."""
POLICIES: Mapping[str, Sync] = {
    "every_step": Sync(),
    "local": Sync(policy="local", every=EVERY),
    "timed": Sync(policy="timed", seconds=5),
    "diloco": Sync(policy="diloco", every=EVERY, outer_momentum=MOMENTUM),
    "diloco_streaming": Sync(policy="diloco", every=EVERY, outer_momentum=MOMENTUM, fragments=4, delay=5),
    "diloco_bfloat16": Sync(policy="diloco", every=EVERY, outer_momentum=MOMENTUM, compress="bfloat16"),
    "diloco_top_k": Sync(
        policy="diloco", every=EVERY, outer_momentum=MOMENTUM, compress="top-k", keep_share=0.1
    ),
    "bfloat16": Sync(compress="bfloat16"),
    "powersgd": Sync(compress="powersgd", rank=4),
    "top_k": Sync(compress="top-k", keep_share=0.01),
    "top_k_tenth": Sync(compress="top-k", keep_share=0.1),
}

Outcome = dict[str, float]


def bench_sync(steps: int = STEPS, policies: Mapping[str, Sync] = POLICIES) -> dict[str, Any]:
    """Train with each policy; return the figures and a table of the outcomes."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        run = sync_run(Path(scratch), steps)
        for number, (name, sync) in enumerate(policies.items()):
            folder = Path(scratch) / name
            folder.mkdir()
            outcomes[name] = _train(run, sync, folder)
            words = " ".join(f"{key} {value:.6g}" for key, value in outcomes[name].items())
            emit({"event": "note", "message": f"{name}: {words}"})
            done = {"done": number + 1, "total": len(policies), "unit": "policies"}
            emit({"event": "progress", "stage": "policies", **done})
    return {"figures": figures_of(outcomes), "policies": outcomes, "parameters": run.network.parameters}


def figures_of(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Compare each policy with every-step: loss, bytes and speed."""
    first = outcomes["every_step"]
    figures = {"every_step_loss": first["loss"], "every_step_bytes": first["bytes"]}
    for name, outcome in outcomes.items():
        if name != "every_step":
            figures[f"{name}_loss_ratio"] = outcome["loss"] / first["loss"]
            figures[f"{name}_bytes_share"] = outcome["bytes"] / first["bytes"]
            figures[f"{name}_speed_ratio"] = outcome["tokens_per_s"] / first["tokens_per_s"]
    return figures


def sync_run(home: Path, steps: int) -> Run:
    """Build a small real corpus and a run of two replicas on it."""
    job = Job(
        name="bench-sync",
        corpus=bench_corpus(1024),
        model=ModelSpec(layers=2, width=64, heads=2, context=64),
        train=Train(
            steps=steps, batch_sequences=64, micro_batch_sequences=32, learning_rate=4e-3,
            warmup_steps=max(1, steps // 20), evaluate_every=steps, checkpoint_every=steps,
        ),
        layout=Layout(dp=WORLD),
        machine=MachineSpec(compile="off"),
    )  # fmt: skip
    return planned(job, home)


def _train(run: Run, sync: Sync, folder: Path) -> Outcome:
    """Do a whole run in separate processes."""
    job = run.job.model_copy(update={"sync": sync})
    save_run(folder, run.model_copy(update={"job": job}))
    outcome: Outcome = {}
    for event in _events(folder):
        if "error" in event:
            raise ProcessFailed(event["error"]["message"])
        if event.get("event") == "evaluation":
            outcome["loss"] = event["loss"]
        elif event.get("event") == "finished":
            outcome["bytes"] = event["bytes_sent"]
            outcome["tokens_per_s"] = run.steps * run.tokens_per_step / event["train_s"]
    return outcome


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Start the processes of a run; yield the events of rank 0, and the errors of all."""
    meeting = f"127.0.0.1:{_free_port()}"
    members = [RankInfo(rank, WORLD, meeting, (rank % usable_cores(),)) for rank in range(WORLD)]
    command = [sys.executable, "-m", TRAIN, "run", str(folder)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([*command, *member.arguments], stdout=subprocess.PIPE, text=True)
            )
            for member in members
        ]
        for process in processes:
            stack.callback(process.kill)
        for rank, process in enumerate(processes):
            assert process.stdout is not None
            events = map(json.loads, process.stdout)
            yield from (event for event in events if rank == 0 or "error" in event)
            if process.wait() != 0:
                raise ProcessFailed(f"rank {rank} ended with code {process.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
