"""Word2vec and hidden Markov models on parameter servers, each mode compared with a single process."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.runs.server_run import train_served
from windlass.runs.training import prepare, train
from windlass.spec.job import Corpus, Hmm, Job, MachineSpec, MlpSpec, ModelSpec, TokenizerSpec, Train
from windlass.spec.layout import Layout
from windlass.spec.protocol.progress import Report
from windlass.spec.run import Run
from windlass.spec.sync import Sync

VOCABULARY, WIDTH, STATES, ITERATIONS = 8192, 64, 64, 8
FLOAT_BYTES, MATRICES = 4, 2
MODES: Mapping[str, Sync | None] = {
    "local": None,
    "synchronous": Sync(policy="server", servers=2),
    "bounded": Sync(policy="server", servers=2, mode="bounded", staleness=1),
    "asynchronous": Sync(policy="server", servers=2, mode="asynchronous"),
}
MODELS: Mapping[str, tuple[ModelSpec, Train]] = {
    "word2vec": (
        ModelSpec(family="mlp", layers=1, width=WIDTH, context=64, mlp=MlpSpec(word2vec_epochs=3)),
        Train(steps=3, batch_sequences=6, micro_batch_sequences=1, evaluate_sequences=4),
    ),
    "hmm": (
        ModelSpec(family="hmm", context=64, hmm=Hmm(states=STATES, min_gain=0)),
        Train(steps=ITERATIONS, evaluate_every=ITERATIONS, checkpoint_every=ITERATIONS),
    ),
}

Events = list[dict[str, Any]]


def bench_statistical(
    home: Path, workers: int, report: Report, say: Callable[[str], None]
) -> dict[str, float]:
    """Train both models in each mode, and return the figures."""
    figures: dict[str, float] = {}
    for what in MODELS:
        outcomes = {}
        for mode, sync in MODES.items():
            run, events = _trained(home, _job(what, mode, sync, workers), report)
            outcomes[mode] = word2vec_outcome(run, events) if what == "word2vec" else hmm_outcome(run, events)
            say(f"{what} {mode}: " + " ".join(f"{key} {value:.6g}" for key, value in outcomes[mode].items()))
        figures |= {f"{what}_{key}": value for key, value in figures_of(outcomes).items()}
    return figures


def figures_of(outcomes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Compare each mode with a single process."""
    first, figures = outcomes["local"], dict[str, float]()
    for mode, outcome in outcomes.items():
        if mode != "local":
            figures[f"{mode}_loss_ratio"] = outcome["loss"] / first["loss"]
            figures[f"{mode}_speed_ratio"] = outcome["tokens_per_s"] / first["tokens_per_s"]
            figures[f"{mode}_bytes_per_update"] = outcome["bytes_per_update"]
            if "share_of_dense" in outcome:
                figures[f"{mode}_share_of_dense"] = outcome["share_of_dense"]
    return figures


def word2vec_outcome(run: Run, events: Events) -> dict[str, float]:
    """Summarise the last pass; its loss is the mean over the pass, while the vectors still change."""
    last = [event for event in events if event.get("event") == "vectors"][-1]
    found = {"loss": last["loss"], "tokens_per_s": last["tokens_per_s"]}
    if "updates" not in last:
        return found
    each = (last["bytes_sent"] + last["bytes_received"]) / last["updates"]
    pushes = run.layout.dp if run.job.sync.mode == "synchronous" else 1
    dense = pushes * 2 * MATRICES * FLOAT_BYTES * run.shape.vocabulary * run.network.width
    return {**found, "bytes_per_update": each, "share_of_dense": each / dense}


def hmm_outcome(run: Run, events: Events) -> dict[str, float]:
    """Summarise the run; the loss is that before the last iteration, on the training text."""
    steps = [event for event in events if event.get("event") == "step"]
    end = next(event for event in events if event.get("event") == "finished")
    tokens = steps[-1]["tokens_per_s"] * steps[-1]["seconds"]
    found = {"loss": steps[-1]["loss"], "tokens_per_s": run.steps * tokens / end["train_s"]}
    if "updates" in end:
        found["bytes_per_update"] = (end["bytes_sent"] + end["bytes_received"]) / end["updates"]
    return found


def _job(what: str, mode: str, sync: Sync | None, workers: int) -> Job:
    model, training = MODELS[what]
    return Job(
        name=f"bench-{what}-{mode}",
        corpus=Corpus(
            sources=(str(Path(sysconfig.get_path("stdlib")) / "[a-d]*.py"),),
            tokenizer=TokenizerSpec(vocabulary=VOCABULARY),
        ),
        model=model,
        train=training,
        layout=Layout(dp=workers if sync is not None else 1),
        machine=MachineSpec(compile="off", threads=1),
        sync=sync or Sync(),
    )


def _trained(home: Path, job: Job, report: Report) -> tuple[Run, Events]:
    events: Events = []
    folder = prepare(job, home, report)
    served = job.sync.policy == "server"
    if not (train_served(folder, events.append) if served else train(folder, events.append)):
        raise KeyboardInterrupt
    return folder.load(), events
