"""The context MLP as numpy and the native library score it, beside the torch model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models import mlp_numpy
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.mlp_numpy import MlpScores, load
from windlass.models.recurrent_state import load_statistical
from windlass.spec.errors import BadInput
from windlass.spec.shape import DecoderShape, MlpShape

SHAPE = MlpShape(vocabulary=83, context=32, layers=2, width=36, ffn_width=50, window=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlp")
    model = build(SHAPE, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():  # far from the first values, so that every part matters
            parameter.mul_(6.0).add_(torch.randn_like(parameter), alpha=0.05)
    save_model(model, path)
    return path


@pytest.fixture(params=["native", "numpy"])
def model(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> MlpScores:
    if request.param == "numpy":
        monkeypatch.setattr(mlp_numpy, "library", lambda: None)
    elif mlp_numpy.library() is None:
        pytest.skip("the native library is not built here")
    return load(folder)


def torch_logprobs(folder: Path, rows_BT: np.ndarray) -> np.ndarray:
    from windlass.models.huggingface import load_model

    network = load_model(folder)
    with torch.no_grad():
        logits = network.logits(network(torch.from_numpy(rows_BT)))
    return torch.log_softmax(logits, dim=-1).numpy()


def rows(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, SHAPE.vocabulary, (count, length))


def test_scores_after_each_token_are_those_of_the_torch_model(model: MlpScores, folder: Path) -> None:
    text = rows(2, 20)
    for row, wanted in zip(text, torch_logprobs(folder, text), strict=True):
        scores = model.scores(model.read(model.first(), row))
        np.testing.assert_allclose(scores, wanted, atol=2e-5)


def test_steps_give_the_bits_of_a_read(model: MlpScores) -> None:
    text = rows(3, 12)
    states = np.stack([model.first()] * 3)
    for place in range(12):
        states = model.step(states, text[:, place])
        for row, state in zip(text, states, strict=True):
            np.testing.assert_array_equal(state, model.read(model.first(), row)[place])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_row_of_scores_is_the_same_bits_in_any_company(folder: Path, data: st.DataObject) -> None:
    model = load(folder)
    states = model.read(model.first(), rows(1, 40)[0])
    chosen = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=9))
    threads = data.draw(st.integers(1, 3))
    together = MlpScores(SHAPE, mlp_numpy.load_weights(folder), threads).scores(states[chosen])
    for place, row in zip(chosen, together, strict=True):
        np.testing.assert_array_equal(row, model.scores(states[place : place + 1])[0])


def test_logprobs_are_the_scores_of_the_targets(model: MlpScores) -> None:
    text = rows(3, 21)
    found = model.logprobs(text[:, :-1], text[:, 1:])
    for row, values in zip(text, found, strict=True):
        scores = model.scores(model.read(model.first(), row[:-1]))
        np.testing.assert_allclose(values, scores[np.arange(20), row[1:]], atol=2e-5)


def test_probabilities_add_up_to_one_before_any_token(model: MlpScores) -> None:
    scores = model.scores(model.first()[None])
    assert np.exp(scores.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


def test_nothing_to_read_or_to_score_is_nothing(model: MlpScores) -> None:
    assert model.read(model.first(), np.array([], np.int64)).shape == (0, 5)
    assert model.scores(np.empty((0, 5), np.int32)).shape == (0, 83)


def test_large_scores_do_not_overflow(folder: Path) -> None:
    model = load(folder)
    model._norm_D = model._norm_D * 300
    scores = model.scores(model.read(model.first(), rows(1, 9)[0]))
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(
        scores, model.scores_numpy(model.read(model.first(), rows(1, 9)[0])), rtol=1e-3
    )


def test_a_directory_is_loaded_by_what_its_config_says(folder: Path) -> None:
    assert isinstance(load_statistical(folder), MlpScores)


def test_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    save_model(
        build(DecoderShape(family="gpt2", vocabulary=9, context=8, layers=1, width=8, heads=1, ffn_width=8)),
        tmp_path,
    )
    with pytest.raises(BadInput, match="gpt2 model, not an mlp"):
        load(tmp_path)
