"""Hidden Markov models as the engine, evaluation and `windlass tag` use them."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from windlass.models.hmm import HiddenMarkov, load
from windlass.models.hmm.deterministic_matmul import _library, product, product_by_numpy
from windlass.models.hmm.viterbi import best_path
from windlass.models.hmm.weights import HmmWeights, write_model
from windlass.models.recurrent_state import Statistical, load_statistical
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.shape import HmmShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


def made(states: int = 5, vocabulary: int = 11, seed: int = 0) -> HiddenMarkov:
    random = np.random.default_rng(seed)
    tables = (random.random(s) + 0.01 for s in ((states,), (states, states), (states, vocabulary)))
    weights = HmmWeights(*(table / table.sum(-1, keepdims=True) for table in tables))
    return HiddenMarkov(HmmShape(vocabulary=vocabulary, context=16, states=states), weights)


def saved(model: HiddenMarkov, folder: Path) -> Path:
    writer = DirectoryWriter(StoreDir(folder))
    write_model(writer, model.shape, model.weights)
    writer.commit()
    return folder


def chance_of(model: HiddenMarkov, tokens: list[int]) -> float:
    """Return the probability of a text, path by path."""
    start, transition, emission = (table.astype(np.float64) for table in model.weights.tables.values())
    return sum(
        start[path[0]]
        * math.prod(transition[step] for step in itertools.pairwise(path))
        * math.prod(emission[k, v] for k, v in zip(path, tokens, strict=True))
        for path in itertools.product(range(len(start)), repeat=len(tokens))
    )


def test_scores_are_those_of_all_paths() -> None:
    model, tokens = made(), [3, 0, 10, 4]
    states_TK = model.read(model.first(), np.array(tokens))
    scores_V = model.scores(states_TK[-1:])[0]
    expected = [math.log(chance_of(model, [*tokens, v]) / chance_of(model, tokens)) for v in range(11)]
    np.testing.assert_allclose(scores_V, expected, rtol=1e-5)
    assert np.exp(scores_V).sum() == pytest.approx(1, abs=1e-5)


def test_log_probabilities_are_those_that_the_scores_say() -> None:
    model = made()
    tokens_BT = np.random.default_rng(1).integers(0, 11, (3, 9))
    found_BT = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:])
    for tokens_T, found_T in zip(tokens_BT, found_BT, strict=True):
        scores_TV = model.scores(model.read(model.first(), tokens_T[:-1]))
        np.testing.assert_allclose(found_T, scores_TV[np.arange(8), tokens_T[1:]], rtol=1e-5)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_no_row_depends_on_the_others_in_a_bit(states: int, count: int, seed: int) -> None:
    model = made(states, 37, seed)
    tokens_BT = np.random.default_rng(seed).integers(0, 37, (count, 5))
    alone = [model.read(model.first(), tokens_T) for tokens_T in tokens_BT]
    together = np.repeat(model.first()[None], count, axis=0)
    for position in range(5):
        together = model.step(together, tokens_BT[:, position])
        for row, states_TK in zip(together, alone, strict=True):
            np.testing.assert_array_equal(row, states_TK[position])
    scores_BV, found_BT = model.scores(together), model.logprobs(tokens_BT, tokens_BT)
    for row in range(count):
        np.testing.assert_array_equal(model.scores(together[row : row + 1])[0], scores_BV[row])
        np.testing.assert_array_equal(model.logprobs(tokens_BT[[row]], tokens_BT[[row]])[0], found_BT[row])


@given(st.integers(1, 9), st.integers(1, 33), st.integers(1, 2100))
@settings(max_examples=25, deadline=None)
def test_the_native_product_has_the_bits_of_numpys(count: int, inner: int, columns: int) -> None:
    if _library() is None:
        pytest.skip("the native library is not built")
    random = np.random.default_rng(count * inner)
    rows = random.random((count, inner), dtype=np.float32) ** 9
    matrix = random.random((inner, columns), dtype=np.float32)
    np.testing.assert_array_equal(product(rows, matrix), product_by_numpy(rows, matrix))


def test_a_token_that_no_state_emits_says_nothing() -> None:
    weights = made().weights
    emission_KV = weights.emission_KV.copy()
    emission_KV[:, 4] = 0
    emission_KV /= emission_KV.sum(1, keepdims=True)
    model = HiddenMarkov(made().shape, HmmWeights(weights.start_K, weights.transition_KK, emission_KV))
    state_1K = model.first()[None]
    np.testing.assert_array_equal(model.filtered(state_1K, np.array([4])), state_1K)
    assert model.scores(state_1K)[0, 4] == -np.inf
    path, chance = best_path(model.weights, np.array([1, 4, 2]))
    assert len(path) == 3
    assert math.isfinite(chance)


def test_a_rare_token_does_not_underflow() -> None:
    weights = made().weights
    emission_KV = weights.emission_KV.copy()
    emission_KV[:, 4] *= 1e-34
    model = HiddenMarkov(made().shape, HmmWeights(weights.start_K, weights.transition_KK, emission_KV))
    states_TK = model.read(model.first(), np.full(50, 4))
    np.testing.assert_allclose(states_TK.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(states_TK, made().read(model.first(), np.full(50, 4)), rtol=1e-4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_best_path_is_the_likeliest_of_all(tokens: list[int], seed: int) -> None:
    weights = made(3, 4, seed).weights.astype(np.float64)

    def chance(path: tuple[int, ...]) -> float:
        steps = math.prod(weights.transition_KK[step] for step in itertools.pairwise(path))
        emitted = math.prod(weights.emission_KV[k, v] for k, v in zip(path, tokens, strict=True))
        return float(weights.start_K[path[0]] * steps * emitted)

    best = max(map(chance, itertools.product(range(3), repeat=len(tokens))))
    path, logarithm = best_path(weights, np.array(tokens))
    assert chance(tuple(path)) == pytest.approx(best)  # there may be several that are equally likely
    assert logarithm == pytest.approx(math.log(best))


def test_the_best_path_equals_that_of_hmmlearn() -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    weights, tokens = made(7, 20).weights.astype(np.float64), np.random.default_rng(3).integers(0, 20, 400)
    peer = hmm.CategoricalHMM(7, n_features=20, init_params="")
    peer.startprob_, peer.transmat_, peer.emissionprob_ = weights.tables.values()
    chance, path = peer.decode(tokens[:, None], algorithm="viterbi")
    ours, logarithm = best_path(weights, tokens)
    np.testing.assert_array_equal(ours, path)
    assert logarithm == pytest.approx(chance)


def test_an_empty_text_has_an_empty_path() -> None:
    path, logarithm = best_path(made().weights, np.empty(0, np.int64))
    assert (len(path), logarithm) == (0, 0.0)


def test_what_is_drawn_has_the_frequencies_of_the_model() -> None:
    model = made(3, 4)
    tokens, states = model.sample(20_000, np.random.default_rng(5))
    emitted = np.zeros((3, 4))
    np.add.at(emitted, (states, tokens), 1)
    followed = np.zeros((3, 3))
    np.add.at(followed, (states[:-1], states[1:]), 1)
    np.testing.assert_allclose(emitted / emitted.sum(1, keepdims=True), model.weights.emission_KV, atol=0.03)
    np.testing.assert_allclose(
        followed / followed.sum(1, keepdims=True), model.weights.transition_KK, atol=0.03
    )


def test_a_saved_model_is_loaded_with_the_same_bits(tmp_path: Path) -> None:
    model = made()
    found: Statistical = load_statistical(saved(model, tmp_path / "m"))
    assert found.shape == model.shape
    np.testing.assert_array_equal(found.first(), model.first())
    np.testing.assert_array_equal(found.scores(found.first()[None]), model.scores(model.first()[None]))


def test_files_in_float64_are_read_too(tmp_path: Path) -> None:
    model = made()
    writer = DirectoryWriter(StoreDir(tmp_path))
    write_model(writer, model.shape, model.weights.astype(np.float64))
    writer.commit()
    np.testing.assert_array_equal(load(tmp_path).weights.emission_KV, model.weights.emission_KV)


def test_tables_that_are_no_probabilities_are_refused(tmp_path: Path) -> None:
    folder = saved(made(), tmp_path / "m")
    (folder / "manifest.json").unlink()
    tables = dict(made().weights.tables)
    save_file({**tables, "transition": tables["transition"] * 2}, folder / "model.safetensors")
    with pytest.raises(Damaged, match="a row of 'transition' does not sum to 1"):
        load(folder)
    save_file({**tables, "start": np.float32([0.5, 0.5])}, folder / "model.safetensors")
    with pytest.raises(Damaged, match="sizes do not fit together"):
        load(folder)
    save_file({"start": tables["start"]}, folder / "model.safetensors")
    with pytest.raises(Damaged, match="no tensor 'transition'"):
        load(folder)
    save_file(dict(made(4).weights.tables), folder / "model.safetensors")
    with pytest.raises(Damaged, match=r"4 states .* but 5 "):
        load(folder)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    folder = saved(made(), tmp_path / "m")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(Damaged):
        load(folder)


def test_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "windlass-ngram", "vocabulary": 9, "context": 4, "order": 2}'
    )
    with pytest.raises(BadInput, match="not a hidden Markov model"):
        load(tmp_path)


def test_loading_needs_no_torch() -> None:
    code = "import windlass.models.hmm, windlass.models.hmm.viterbi, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
