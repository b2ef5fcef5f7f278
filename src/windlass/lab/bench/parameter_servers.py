"""Parameter servers: loss and speed of each mode, at equal samples, compared with a single process.

Three workers train a tiny Llama on a part of Python's standard library. All runs start from the same weights
and use the same samples in the same number of steps; only the synchronisation differs. They are compared with
a single process, and with `every-step`, whose replicas all-reduce gradients without a server.
parameter_servers_statistical.py does the same for word2vec and hidden Markov models.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.lab.bench.parameter_servers_statistical import bench_statistical
from windlass.runs.server_run import train_served
from windlass.runs.training import prepare, train
from windlass.spec.job import Corpus, Job, MachineSpec, ModelSpec, TokenizerSpec, Train
from windlass.spec.layout import Layout
from windlass.spec.protocol.progress import Report
from windlass.spec.run import Run
from windlass.spec.sync import Sync

WORKERS, STEPS, RATE = 3, 600, 2e-3
ASYNCHRONOUS = Sync(policy="server", servers=2, mode="asynchronous")
MODES: Mapping[str, Sync | None] = {
    "local": None,
    "every_step": Sync(),
    "synchronous": Sync(policy="server", servers=2),
    "synchronous_unlogged": Sync(policy="server", servers=2, log=False),
    "bounded": Sync(policy="server", servers=2, mode="bounded", staleness=1),
    "asynchronous": ASYNCHRONOUS,
    "asynchronous_damped": ASYNCHRONOUS.model_copy(update={"damping": 0.1}),
}
"""None is a single process."""

Outcome = dict[str, float]


def bench_served(
    steps: int,
    report: Report,
    say: Callable[[str], None],
    modes: Mapping[str, Sync | None] = MODES,
    *,
    rate: float = RATE,
    older: bool = True,
) -> dict[str, Any]:
    """Train in each mode; return the figures and the outcome of each."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        home = Path(scratch)
        for name, sync in modes.items():
            outcomes[name] = _trained(home, bench_job(name, sync, steps, rate), report)
            say(f"{name}: " + " ".join(f"{key} {value:.6g}" for key, value in outcomes[name].items()))
        found = bench_statistical(home, WORKERS, report, say) if older else {}
    return {"figures": {**figures_of(outcomes), **found}, "modes": outcomes}


def figures_of(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Compare each mode with a single process: loss, speed and staleness of gradients."""
    first = outcomes["local"]
    figures = {"local_loss": first["loss"], "local_tokens_per_s": first["tokens_per_s"]}
    for name, outcome in outcomes.items():
        if name != "local":
            figures[f"{name}_loss_ratio"] = outcome["loss"] / first["loss"]
            figures[f"{name}_speed_ratio"] = outcome["tokens_per_s"] / first["tokens_per_s"]
            figures[f"{name}_staleness"] = outcome["staleness"]
    if {"asynchronous", "synchronous"} <= outcomes.keys():
        ratio = outcomes["asynchronous"]["loss"] / outcomes["synchronous"]["loss"]
        figures["asynchronous_to_synchronous_loss_ratio"] = ratio
    return figures


def bench_job(name: str, sync: Sync | None, steps: int, rate: float = RATE) -> Job:
    return Job(
        name=f"bench-{name.replace('_', '-')}",
        corpus=Corpus(
            sources=(str(Path(sysconfig.get_path("stdlib")) / "[a-d]*.py"),),
            tokenizer=TokenizerSpec(vocabulary=1024),
        ),
        model=ModelSpec(layers=2, width=64, heads=2, context=64),
        train=Train(
            steps=steps, batch_sequences=24, micro_batch_sequences=8, learning_rate=rate,
            warmup_steps=max(1, steps // 20), evaluate_every=steps, checkpoint_every=max(1, steps // 3),
        ),
        layout=Layout(dp=WORKERS if sync is not None else 1),
        machine=MachineSpec(compile="off", threads=1),
        sync=sync or Sync(),
    )  # fmt: skip


def _trained(home: Path, job: Job, report: Report) -> Outcome:
    outcome: Outcome = {"staleness": 0.0}

    def tell(event: dict[str, Any]) -> None:
        if event.get("event") == "evaluation":
            outcome["loss"] = event["loss"]
        elif event.get("event") == "finished":
            outcome.update(_finished(event, run))

    folder = prepare(job, home, report)
    run = folder.load()
    done = train_served(folder, tell) if job.sync.policy == "server" else train(folder, tell)
    if not done:
        raise KeyboardInterrupt
    return outcome


def _finished(event: dict[str, Any], run: Run) -> Outcome:
    counts = {int(stale): int(count) for stale, count in event.get("staleness", {}).items()}
    mean = sum(stale * count for stale, count in counts.items()) / max(1, sum(counts.values()))
    return {
        "tokens_per_s": run.steps * run.tokens_per_step / event["train_s"],
        "bytes_sent": event["bytes_sent"],
        "staleness": mean,
    }
