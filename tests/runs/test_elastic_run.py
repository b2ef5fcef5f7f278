"""Elastic runs from start to end, and requests for another number of workers."""

import json
import os
import pydoc_data.topics
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windlass.models.word2vec_files import load_vectors
from windlass.parallel.process_group import SingleProcess
from windlass.runs.audit import audit
from windlass.runs.elastic_run import (
    address_towards_leader,
    read_workers_request,
    train_elastic,
    write_workers_request,
)
from windlass.runs.run_status import request_workers
from windlass.runs.training import RunFolder, prepare
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.train.event_log import EventLog
from windlass.train.word2vec.start import prepare as prepare_vectors

PATIENCE_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    text = tmp_path / "topics.txt"
    text.write_text("\n\n".join(list(pydoc_data.topics.topics.values())[:12]), encoding="utf-8")
    job: dict[str, Any] = {
        "name": "tiny",
        "corpus": {
            "sources": [str(text)],
            "document": "paragraph",
            "validation_share": 0.2,
            "tokenizer": {"kind": "char"},
        },
        "model": {"layers": 2, "width": 32, "heads": 2, "context": 32},
        "train": {"steps": 120, "batch_sequences": 4},
        "machine": {"compile": "off", "threads": 1},
        "layout": {"dp": 2},
    }
    return prepare(Job.model_validate(job), tmp_path / "home", lambda _progress: None)


def test_requests_for_workers_are_counted_and_keep_the_machines(run: RunFolder) -> None:
    write_workers_request(run.path, 4, "ada", nodes=2)
    write_workers_request(run.path, 4, "ada")
    write_workers_request(run.path, 3, "bob")
    assert read_workers_request(run.path) == {"id": 2, "workers": 3, "nodes": 2, "by": "bob"}


def test_a_run_of_fixed_workers_cannot_be_scaled(run: RunFolder) -> None:
    with pytest.raises(BadInput, match="tiny/1 is not elastic"):
        request_workers(run, 2, by="ada")


def test_no_workers_at_all_cannot_be_requested(run: RunFolder) -> None:
    with pytest.raises(BadInput, match="must be at least 1"):
        request_workers(run, 0, by="ada")


def test_no_coordinator_leads_a_run_that_was_never_started(run: RunFolder) -> None:
    assert address_towards_leader(run) is None


@pytest.mark.slow
def test_a_run_loses_a_worker_and_a_coordinator_and_ends_as_if_nothing_had_happened(run: RunFolder) -> None:
    events: list[dict[str, Any]] = []
    threading.Thread(target=_hurt, args=(run.path, events), daemon=True).start()
    assert train_elastic(run, events.append, workers=2)
    assert run.finished
    report = audit(run.path)
    assert (report.samples_lost, report.samples_repeated, report.reasons) == (0, 0, [])
    journal = [json.loads(line) for line in (run.path / "journal.jsonl").read_bytes().splitlines()]
    assert sum(record["event"] == "lost" for record in journal) == 1
    assert sum(record["event"] == "coordinator" for record in journal) == 2
    assert journal[-1]["event"] == "over"


@pytest.mark.slow
def test_who_learns_the_first_vectors_may_die(tmp_path: Path, run: RunFolder) -> None:
    job = run.load().job.model_dump()
    job["model"] = {"family": "mlp", "layers": 2, "width": 32, "context": 32, "mlp": {"word2vec_epochs": 40}}
    job["train"] = {"steps": 5, "batch_sequences": 4}
    mlp = prepare(Job.model_validate(job), tmp_path / "home", lambda _progress: None)
    events: list[dict[str, Any]] = []
    threading.Thread(target=_hurt_at, args=(mlp.path, events, "vectors", 0), daemon=True).start()
    assert train_elastic(mlp, events.append, workers=2)
    names = [event["event"] for event in events]
    assert names.count("lost") == 1
    assert names.count("started") == 1
    assert names.index("lost") < names.index("vectors_resumed") < names.index("finished")
    assert audit(mlp.path).ok
    alone = RunFolder(tmp_path / "alone")
    assert prepare_vectors(
        mlp.load(), alone.path, EventLog(alone.path, quiet=True), SingleProcess(), lambda: False
    )
    ours, theirs = load_vectors(mlp.path / "word2vec"), load_vectors(alone.path / "word2vec")
    assert ours is not None
    assert theirs is not None
    np.testing.assert_array_equal(ours.inputs_VD, theirs.inputs_VD)


def _hurt_at(folder: Path, events: list[dict[str, Any]], what: str, rank: int) -> None:
    """Kill a member after an event."""
    _await(lambda: any(event["event"] == what for event in events))
    shown = json.loads((folder / "members.json").read_bytes())
    os.kill(next(w["pid"] for w in shown["workers"] if w["rank"] == rank), signal.SIGKILL)


def _hurt(folder: Path, events: list[dict[str, Any]]) -> None:
    """Kill a member once it trains, and then the coordinator."""
    _hurt_at(folder, events, "step", 1)
    shown = json.loads((folder / "members.json").read_bytes())
    _await(lambda: any(event["event"] == "lost" for event in events))
    os.kill(shown["coordinator"]["pid"], signal.SIGKILL)


def _await(fact: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not fact() and time.monotonic() < until:
        time.sleep(0.02)
