"""A run is the same run under any layout and sync policy."""

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest

from windlass.runs.training import find_resumable, newest_of, prepare, resumable
from windlass.spec.errors import BadInput
from windlass.spec.job import Job


def job_on(folder: Path, **tables: dict[str, Any]) -> Job:
    text = folder / "topics.txt"
    text.write_text("\n\n".join(list(pydoc_data.topics.topics.values())[:12]), encoding="utf-8")
    data: dict[str, Any] = {
        "name": "tiny",
        "corpus": {
            "sources": [str(text)],
            "document": "paragraph",
            "validation_share": 0.2,
            "tokenizer": {"kind": "char"},
        },
        "model": {"layers": 2, "width": 32, "heads": 2, "context": 32},
        "train": {"steps": 12, "batch_sequences": 4},
        "machine": {"compile": "off", "threads": 1},
        **tables,
    }
    return Job.model_validate(data)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    prepare(job_on(tmp_path), tmp_path / "home", lambda _progress: None)
    return tmp_path / "home"


def test_a_run_continues_under_the_layout_that_the_job_has(home: Path, tmp_path: Path) -> None:
    job = job_on(tmp_path, layout={"dp": 2}, sync={"policy": "diloco"})
    folder = find_resumable(job, home)
    assert folder.name == "tiny/1"
    assert folder.load().layout.dp == 2
    assert folder.load().job == job
    assert newest_of(job_on(tmp_path), home) == resumable(job, home) == folder


def test_a_run_under_the_same_layout_is_left_as_it_is(home: Path, tmp_path: Path) -> None:
    before = (home / "runs/tiny/1/run.json").read_bytes()
    find_resumable(job_on(tmp_path), home)
    assert (home / "runs/tiny/1/run.json").read_bytes() == before


def test_a_layout_that_the_run_cannot_have_changes_nothing(home: Path, tmp_path: Path) -> None:
    before = (home / "runs/tiny/1/run.json").read_bytes()
    with pytest.raises(BadInput, match="layout dp=3"):
        find_resumable(job_on(tmp_path, layout={"dp": 3}), home)
    assert (home / "runs/tiny/1/run.json").read_bytes() == before


def test_checkpoints_of_a_run_may_go_elsewhere_from_now_on(home: Path, tmp_path: Path) -> None:
    folder = find_resumable(job_on(tmp_path, checkpoint={"store": "s3://bucket/runs", "keep": 5}), home)
    assert folder.load().job.checkpoint.store == "s3://bucket/runs"


def test_other_settings_make_another_run(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="other settings: seed"):
        find_resumable(job_on(tmp_path, layout={"dp": 2}).model_copy(update={"seed": 5}), home)


def test_a_model_is_not_trained_on_with_an_objective_that_it_was_not_made_for(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = {"model_type": "bert", "vocab_size": 90, "max_position_embeddings": 32, **sizes}
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text(json.dumps(config))
    job = job_on(tmp_path, model={"start_from": str(tmp_path / "encoder")})
    with pytest.raises(BadInput, match="is a bert model, not llama") as refused:
        prepare(job, tmp_path / "home", lambda _progress: None)
    assert refused.value.hint == 'set family = "bert"'
