"""A whole run on a small real corpus, by the door that `windlass train` opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.train.conftest import MACHINE, tiny_job
from windlass.models.recurrent_state import load_statistical
from windlass.plan.count_models import plan_statistic
from windlass.runs.training import corpus_facts
from windlass.spec.errors import BadInput
from windlass.spec.job import Job, NgramSpec
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.shape import NgramShape
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.loop import save_run
from windlass.train.ngram.run import train


def folder_of(path: Path, corpus: Path, **ngram: Any) -> Path:
    base = tiny_job(Path("unused.txt")).model_dump(mode="json")
    base["model"] = {"family": "ngram", "context": 32, "ngram": ngram}
    base["train"] = {}
    path.mkdir()
    save_run(path, plan_statistic(Job.model_validate(base), corpus_facts(corpus), MACHINE))
    return path


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == kind]


def digest_of(folder: Path) -> dict[str, str]:
    manifest = load_manifest(StoreDir(folder / "model"))
    assert manifest is not None
    return {name: record.sha256 for name, record in manifest.files.items() if name != "windlass.json"}


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_model_of_one_that_was_not(
    corpus_path: Path, tmp_path: Path
) -> None:
    whole = folder_of(tmp_path / "whole", corpus_path, order=3)
    assert train(whole, lambda: False)
    assert [e["stage"] for e in events(whole, "step")] == ["count", "merge", "link", "estimate"]
    (evaluation,) = events(whole, "evaluation")
    model = load_statistical(whole / "model")
    assert isinstance(model.shape, NgramShape)
    assert 1 < evaluation["perplexity"] < model.shape.vocabulary
    assert json.loads((whole / "model" / "windlass.json").read_text())["parameters"] == sum(
        model.shape.ngrams
    )
    assert not (whole / "counting").exists()
    stopped = folder_of(tmp_path / "stopped", corpus_path, order=3)
    assert not train(stopped, lambda: bool(events(stopped, "step")))
    assert events(stopped, "stopped")[0]["step"] == 1
    assert train(stopped, lambda: False)
    assert digest_of(stopped) == digest_of(whole)


@pytest.mark.slow
def test_a_run_counted_on_beam_ends_with_the_same_model(corpus_path: Path, tmp_path: Path) -> None:
    here, there = (
        folder_of(tmp_path / name, corpus_path, order=3, runner=runner)
        for name, runner in (("here", "pool"), ("there", "direct"))
    )
    assert train(here, lambda: False)
    assert train(there, lambda: False)
    assert digest_of(there) == digest_of(here)
    assert not (there / "counting").exists()


@pytest.mark.parametrize(
    ("asked", "why"),
    [({"scratch": "/tmp/x"}, "go with runner"), ({"runner": "flink"}, "needs scratch")],
)
def test_runners_and_their_options_go_together(asked: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        NgramSpec.model_validate(asked)


def test_several_workers_are_refused(corpus_path: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", corpus_path, order=2)
    with pytest.raises(BadInput, match="counted by one worker"):
        train(folder, lambda: False, RankInfo(rank=0, world=2))
