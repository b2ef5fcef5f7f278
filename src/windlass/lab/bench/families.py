"""All model families on the same text, with the same tokenizer and the same held-out windows.

Each is trained like any job: planned, run in its own processes, and measured by the process of `windlass
eval`. Families trained with gradients get the same time; n-grams are counted and take as long as they need.
The predictions of the planner are printed next to the measurements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.lab.planner.plan_verify import peak_bytes
from windlass.registry.evaluate import measure
from windlass.runs.run_status import journal_of
from windlass.runs.training import RunFolder, newest_of, prepare, train
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.job import Job
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.read import parse
from windlass.spec.run import LINEAGE

FAMILIES: dict[str, dict[str, Any]] = {
    "ngram-3": {"family": "ngram", "ngram": {"order": 3, "prune": []}},
    "ngram-5": {"family": "ngram", "ngram": {"order": 5, "prune": []}},
    "hmm": {"family": "hmm", "hmm": {"states": 128}},
    "mlp": {"family": "mlp"},
    "gpt2": {"family": "gpt2"},
    "llama": {"family": "llama"},
}
NUMBERS = ("loss", "perplexity", "bits_per_byte", "tokens")


@dataclass(frozen=True)
class FamilyBenchOptions:
    """The families, the text and the training time."""

    sources: tuple[str, ...]
    seconds: float = 60.0
    vocabulary: int = 2048
    context: int = 128
    families: tuple[str, ...] = tuple(FAMILIES)


def compare(
    wanted: FamilyBenchOptions, home: Path, report: Report, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train and measure every family; finished runs are not repeated."""
    unknown = [name for name in wanted.families if name not in FAMILIES]
    if unknown:
        raise BadInput(f"--families {unknown[0]}: unknown family", hint=f"known: {', '.join(FAMILIES)}")
    rows = []
    for number, name in enumerate(wanted.families):
        report(Progress("families", number, len(wanted.families), "families", {"now": name}))
        rows.append(_compared(name, job_of(name, wanted), home, report, wanted.context))
        say(f"{name}: perplexity {rows[-1]['perplexity']:.2f}")
    report(Progress("families", len(rows), len(rows), "families"))
    figures = {f"perplexity_{row['name'].replace('-', '_')}": row["perplexity"] for row in rows}
    return {"figures": figures, "families": rows, "sources": list(wanted.sources)}


def job_of(name: str, wanted: FamilyBenchOptions) -> Job:
    """Return the job of one family, as if it were written in a file."""
    counted = FAMILIES[name]["family"] == "ngram"
    return parse(
        Job,
        {
            "name": f"families-{name}",
            "corpus": {
                "sources": list(wanted.sources),
                "split": "tail",
                "tokenizer": {"vocabulary": wanted.vocabulary},
            },
            "model": {**FAMILIES[name], "context": wanted.context},
            "train": {} if counted else {"time": wanted.seconds},
        },
        "bench families",
    )


def _compared(name: str, job: Job, home: Path, report: Report, context: int) -> dict[str, Any]:
    peak = 0

    def look(event: dict[str, Any]) -> None:
        nonlocal peak
        peak = max(peak, peak_bytes())
        if event.get("event") == "progress":
            report(Progress(f"{name}: {event['stage']}", event["done"], event["total"], event["unit"]))

    folder = newest_of(job, home) or prepare(job, home, report)
    if not folder.finished and not train(folder, look):
        raise ProcessFailed(f"run {folder.name} was stopped", hint="run the same command again to continue")
    run = folder.load()
    found = measure(folder.result, Path(run.corpus), home, lambda _: None, context=context)
    lineage = json.loads((folder.result / LINEAGE).read_text())
    return {
        "name": name,
        "weights": lineage["parameters"],
        "model_bytes": sum(file.stat().st_size for file in folder.result.glob("*.safetensors")),
        **{key: found[key] for key in NUMBERS},
        "seconds": took_s(folder),
        "predicted_s": run.predicted.seconds,
        "peak_bytes": peak,
        "predicted_bytes": run.predicted.memory_bytes,
    }


def took_s(folder: RunFolder) -> float:
    """Return the seconds from the first start of a run to its end."""
    times = {str(record["event"]): float(record["time"]) for record in reversed(list(journal_of(folder)))}
    return times["finished"] - times["started"]


def table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the printed row of each family, the best last."""
    return [
        (
            row["name"],
            f"{row['perplexity']:.2f}",
            f"{row['bits_per_byte']:.3f}",
            f"{row['weights'] / 1e6:.2f}M",
            f"{row['model_bytes'] / 1e6:.1f} MB",
            f"{row['seconds']:.1f} s",
            f"{row['predicted_s']:.1f} s",
            f"{row['peak_bytes'] / 1e6:.0f} MB" if row["peak_bytes"] else "",
            f"{row['predicted_bytes'] / 1e6:.0f} MB",
        )
        for row in sorted(rows, key=lambda row: -float(row["perplexity"]))
    ]


HEADS = (
    "family", "perplexity", "bits/byte", "weights", "size", "took", "predicted", "peak", "predicted peak",
)  # fmt: skip
