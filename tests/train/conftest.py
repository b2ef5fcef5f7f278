"""A small real corpus and runs on it."""

import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.corpus.build import build_corpus
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import plan_run
from windlass.runs.training import corpus_facts
from windlass.spec.job import Job
from windlass.spec.run import Run

MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=5e10, has_compiler=True)


@pytest.fixture(scope="session")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "topics.txt"
    text.write_text("\n\n".join(list(pydoc_data.topics.topics.values())[:12]), encoding="utf-8")
    return build_corpus(tiny_job(text).corpus, folder / "home")


@pytest.fixture
def make_run(corpus_path: Path) -> Callable[..., Run]:
    """Return a maker of tiny runs: `make_run(train={"steps": 6}, model={"family": "bert"})`."""

    def make(**tables: dict[str, Any]) -> Run:
        job = tiny_job(Path("unused.txt"), **tables)
        return plan_run(job, corpus_facts(corpus_path), MACHINE)

    return make


def tiny_job(text: Path, **tables: dict[str, Any]) -> Job:
    data: dict[str, Any] = {
        "name": "tiny",
        "seed": 7,
        "corpus": {
            "sources": [str(text)],
            "document": "paragraph",
            "validation_share": 0.2,
            "tokenizer": {"kind": "char"},
        },
        "model": {"layers": 2, "width": 32, "heads": 2, "context": 32},
        "train": {
            "steps": 12,
            "batch_sequences": 4,
            "micro_batch_sequences": 2,
            "learning_rate": 3e-3,
            "checkpoint_every": 4,
            "evaluate_every": 5,
            "evaluate_sequences": 8,
            "checkpoint_keep": 10,
            "log_every": 1,
        },
        "machine": {"compile": "off", "threads": 1},
    }
    for table, values in tables.items():
        data[table] = {**data.get(table, {}), **values}
    return Job.model_validate(data)
