"""Runs whose model starts from word2vec, in this process: two stages, either of which may be stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from windlass.models.word2vec_files import first_embedding, load_vectors
from windlass.spec.run import Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.loop import save_run, train
from windlass.train.word2vec import learner, start

MLP = {"family": "mlp", "heads": None, "mlp": {"window": 4, "word2vec_epochs": 2}}


@pytest.fixture
def begun(
    tmp_path: Path, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    monkeypatch.setattr(learner, "CHUNK_TOKENS", 8000)

    def begin(name: str, **more: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        save_run(folder, make_run(model=MLP, train={"steps": 4, **more}))
        return folder

    return begin


def stop_at(call: int) -> Callable[[], bool]:
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= call


def never() -> bool:
    return False


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in Journal(StoreDir(folder)).read() if e["event"] == kind]


def test_the_model_starts_from_the_vectors(begun: Callable[..., Path]) -> None:
    folder = begun("run", steps=1, learning_rate=1e-12, weight_decay=0.0)
    assert train(folder, never)
    vectors = load_vectors(folder / "word2vec")
    assert vectors is not None
    found = load_file(folder / "model" / "model.safetensors")["embedding.weight"]
    np.testing.assert_allclose(found, first_embedding(vectors), atol=1e-6)
    assert [e["epoch"] for e in events(folder, "vectors")] == [1, 2]


@pytest.mark.parametrize("calls", [(2, 1), (6, 4, 3)])
def test_stopped_in_either_stage_and_resumed_a_run_ends_with_the_same_bits(
    begun: Callable[..., Path], calls: tuple[int, ...]
) -> None:
    whole, broken = begun("whole"), begun("broken")
    assert train(whole, never)
    for call in calls:
        assert not train(broken, stop_at(call))
    assert train(broken, never)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, broken))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_vectors_that_are_there_are_not_learnt_again(begun: Callable[..., Path]) -> None:
    folder = begun("run", checkpoint_every=2)
    assert not train(folder, stop_at(15))
    assert committed(folder / "checkpoints")
    written = (folder / "word2vec" / "manifest.json").stat().st_mtime_ns
    assert train(folder, never)
    assert (folder / "word2vec" / "manifest.json").stat().st_mtime_ns == written
    assert len(events(folder, "vectors")) == 2


def test_only_an_mlp_that_asks_for_it_starts_from_vectors(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    assert start.is_due(make_run(model=MLP), tmp_path)
    assert not start.is_due(make_run(model={**MLP, "mlp": {"start": "random"}}), tmp_path)
    assert not start.is_due(make_run(), tmp_path)
