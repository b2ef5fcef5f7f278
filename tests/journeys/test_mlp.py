"""A context MLP from the command line: vectors first, two processes, and asked for neighbours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.models.word2vec_files import load_vectors
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

MLP = ("--set", "model.family=mlp", "--set", "model.mlp.word2vec_epochs=2")


@pytest.fixture
def headless(folder: Path) -> Path:
    job = folder / "job.toml"
    job.write_text(job.read_text().replace("heads = 2\n", ""))
    return folder


def test_two_processes_start_from_vectors_and_the_model_knows_its_neighbours(
    headless: Path, as_json: Callable[..., Any]
) -> None:
    result = as_json("train", "job.toml", *MLP, "--workers", "2")
    run = Path(result["run"])
    vectors = load_vectors(run / "word2vec")
    assert vectors is not None
    assert vectors.metadata["epoch"] == 2
    told = list(Journal(StoreDir(run)).read())
    kinds = [event["event"] for event in told if event["event"] in ("vectors", "started", "finished")]
    assert kinds == ["vectors", "vectors", "started", "finished"]
    losses = [event["loss"] for event in told if event["event"] == "step"]
    assert losses[-1] < losses[0]
    near = as_json("models", "near", result["model"], "the", "--count", "5")
    assert near["token"]["text"] == " the"
    cosines = [one["cosine"] for one in near["near"]]
    assert len(cosines) == 5
    assert cosines == sorted(cosines, reverse=True)


def test_layouts_that_do_not_fit_and_tokens_that_are_none_are_refused(
    headless: Path, windlass: Callable[..., Any]
) -> None:
    refused = windlass("train", "job.toml", *MLP, "--layout", "tp=2", code=2)
    assert "an mlp is small; divide its text (dp) or its weights (sharded)" in refused.stderr
    refused = windlass("models", "near", "nothing", "the", code=2)
    assert "nothing" in refused.stderr
