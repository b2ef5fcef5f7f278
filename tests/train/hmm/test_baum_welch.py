"""The E-step and the M-step by themselves."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.train.hmm.problems import random_tokens, random_weights
from windlass.models.hmm.weights import HmmWeights
from windlass.train.hmm.exact_sum import Counts
from windlass.train.hmm.maximise import log_prior, maximise
from windlass.train.hmm.sweep import sweep
from windlass.train.hmm.text import text_of

Tokens = NDArray[np.int64]


def counted(weights: HmmWeights, tokens_NT: Tokens, **options: object) -> Counts:
    tally = sweep(weights, text_of(tokens_NT), **options)  # type: ignore[arg-type]
    assert tally is not None
    return tally.counts()


def climb(weights: HmmWeights, tokens_NT: Tokens, iterations: int, smoothing: float = 0.0) -> list[float]:
    """Return what Baum and Welch let never fall, iteration by iteration."""
    reached = []
    for _ in range(iterations):
        counts = counted(weights, tokens_NT)
        reached.append(counts.log_likelihood + log_prior(weights, smoothing))
        weights = maximise(counts, weights, smoothing)
    return reached


def test_counts_are_those_of_every_path_weighed_by_its_probability() -> None:
    weights, tokens = random_weights(3, 4), [2, 0, 3, 3]
    total, start = 0.0, np.zeros(3)
    transition, emission = np.zeros((3, 3)), np.zeros((4, 3))
    for path in itertools.product(range(3), repeat=len(tokens)):
        steps = list(itertools.pairwise(path))
        chance = weights.start_K[path[0]] * math.prod(weights.transition_KK[step] for step in steps)
        chance *= math.prod(weights.emission_KV[k, v] for k, v in zip(path, tokens, strict=True))
        total += chance
        start[path[0]] += chance
        for step in steps:
            transition[step] += chance
        for state, token in zip(path, tokens, strict=True):
            emission[token, state] += chance
    counts = counted(weights, np.array([tokens]))
    assert counts.log_likelihood == pytest.approx(math.log(total), rel=1e-12)
    np.testing.assert_allclose(counts.start_K, start / total, rtol=1e-9)
    np.testing.assert_allclose(counts.transition_KK, transition / total, rtol=1e-9)
    np.testing.assert_allclose(counts.emission_VK, emission / total, rtol=1e-9)


@pytest.mark.parametrize("implementation", ["log", "scaling"])
def test_every_iteration_equals_that_of_hmmlearn(implementation: str) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    weights, tokens_NT = random_weights(6, 30), random_tokens(20, 25, 30)
    peer = hmm.CategoricalHMM(
        6, n_features=30, n_iter=12, tol=-math.inf, init_params="", implementation=implementation
    )
    peer.startprob_, peer.transmat_, peer.emissionprob_ = weights.tables.values()
    peer.fit(tokens_NT.reshape(-1, 1), [25] * 20)
    assert climb(weights, tokens_NT, 12) == pytest.approx(list(peer.monitor_.history), rel=1e-12)


@given(
    states=st.integers(1, 6),
    vocabulary=st.integers(1, 9),
    count=st.integers(1, 5),
    length=st.integers(1, 12),
    seed=st.integers(0, 2**31),
    smoothing=st.sampled_from([0.0, 0.01, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_the_likelihood_never_falls(
    states: int, vocabulary: int, count: int, length: int, seed: int, smoothing: float
) -> None:
    weights, tokens_NT = (
        random_weights(states, vocabulary, seed),
        random_tokens(count, length, vocabulary, seed),
    )
    reached = climb(weights, tokens_NT, 8, smoothing)
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(reached))


def test_the_likelihood_of_real_text_never_falls_in_fifty_iterations(
    shakespeare_words: Callable[[int, int, int], Tokens],
) -> None:
    reached = climb(random_weights(12, 400, 5), shakespeare_words(64, 64, 400), 50)
    assert all(later > earlier for earlier, later in itertools.pairwise(reached))
    assert reached[-1] > reached[0] * 0.95  # they are negative: at least 5% were gained


def test_single_precision_finds_the_same_likelihood() -> None:
    weights, tokens_NT = random_weights(16, 100), random_tokens(40, 200, 100)
    double, single = (counted(weights, tokens_NT, dtype=kind) for kind in (torch.float64, torch.float32))
    assert single.log_likelihood == pytest.approx(double.log_likelihood, rel=1e-7)
    torch.testing.assert_close(single.emission_VK, double.emission_VK, rtol=1e-4, atol=1e-4)


def test_sums_do_not_depend_on_workers_or_threads() -> None:
    weights, tokens_NT = random_weights(300, 50), random_tokens(400, 40, 50)
    alone = sweep(weights, text_of(tokens_NT), dtype=torch.float32)
    parts = [
        sweep(weights, text_of(tokens_NT), dtype=torch.float32, share=(rank, 3), threads=2)
        for rank in range(3)
    ]
    sums = [[t._start_K, t._transition_KK, t._emission_VK, t._facts] for t in parts if t is not None]
    assert alone is not None
    assert torch.equal(alone._emission_VK, sums[0][2] + sums[1][2] + sums[2][2])
    assert torch.equal(alone._transition_KK, sums[0][1] + sums[1][1] + sums[2][1])
    assert torch.equal(alone._start_K, sums[0][0] + sums[1][0] + sums[2][0])
    assert torch.equal(alone._facts, sums[0][3] + sums[1][3] + sums[2][3])
    assert all(part.any() for part in (total[2] for total in sums))  # each of the three had something to do


def test_every_token_is_counted_once() -> None:
    tokens_NT = random_tokens(7, 33, 10)
    counts = counted(random_weights(4, 10), tokens_NT)
    np.testing.assert_allclose(
        counts.emission_VK.sum(1), np.bincount(tokens_NT.ravel(), minlength=10), rtol=1e-9
    )
    assert float(counts.transition_KK.sum()) == pytest.approx(7 * 32)
    assert float(counts.start_K.sum()) == pytest.approx(7)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_long_sequence_of_rare_tokens_does_not_underflow(kind: torch.dtype) -> None:
    weights = random_weights(3, 5)
    rare = weights.emission_KV * np.array([1e-30, 1e-30, 1e-30, 1e-30, 0.0])
    rare[:, 4] = 1 - rare.sum(1)
    tokens_NT = random_tokens(1, 5000, 4)
    counts = counted(HmmWeights(weights.start_K, weights.transition_KK, rare), tokens_NT, dtype=kind)
    assert counts.impossible == 0
    assert counts.log_likelihood == pytest.approx(5000 * math.log(1e-30 / 5), rel=0.05)
    assert float(counts.emission_VK.sum()) == pytest.approx(5000, rel=1e-4)


def test_an_impossible_sequence_teaches_nothing_and_is_counted() -> None:
    weights = random_weights(3, 5)
    emission_KV = weights.emission_KV.copy()
    emission_KV[:, 2] = 0
    emission_KV /= emission_KV.sum(1, keepdims=True)
    weights = HmmWeights(weights.start_K, weights.transition_KK, emission_KV)
    possible, impossible = [0, 1, 3, 4], [0, 1, 2, 4]
    both, one = counted(weights, np.array([possible, impossible])), counted(weights, np.array([possible]))
    assert (both.impossible, one.impossible) == (1, 0)
    assert both.log_likelihood == pytest.approx(one.log_likelihood)
    torch.testing.assert_close(both.emission_VK, one.emission_VK)
    assert torch.isfinite(both.transition_KK).all()


def test_a_state_that_dies_keeps_its_rows() -> None:
    weights = random_weights(3, 4)
    start_K, transition_KK = weights.start_K.copy(), weights.transition_KK.copy()
    start_K[2], transition_KK[:, 2] = 0, 0
    transition_KK /= transition_KK.sum(1, keepdims=True)
    weights = HmmWeights(start_K / start_K.sum(), transition_KK, weights.emission_KV)
    after = maximise(counted(weights, random_tokens(3, 9, 4)), weights, 0.0)
    np.testing.assert_array_equal(after.emission_KV[2], weights.emission_KV[2])
    np.testing.assert_array_equal(after.transition_KK[2], weights.transition_KK[2])
    np.testing.assert_allclose(after.emission_KV.sum(1), 1)


def test_smoothing_leaves_no_zero() -> None:
    weights, tokens_NT = random_weights(3, 9), random_tokens(3, 9, 4)  # tokens 4 to 8 never come
    exact, smooth = (maximise(counted(weights, tokens_NT), weights, by) for by in (0.0, 1e-3))
    assert (exact.emission_KV[:, 4:] == 0).all()
    assert (smooth.emission_KV > 0).all()


def test_a_sweep_that_is_stopped_says_nothing() -> None:
    assert sweep(random_weights(3, 9), text_of(random_tokens(40, 9, 9)), stopped=lambda: True) is None


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("states", [1, 3])
def test_the_expectation_changes_nothing_that_it_reads(states: int, count: int) -> None:
    """With one state, or one sequence, a table that is turned or repeated may be the table itself."""
    weights, tokens_NT = random_weights(states, 9), random_tokens(count, 9, 9)
    before = [table.copy() for table in weights.tables.values()]
    first = counted(weights, tokens_NT)
    for table, kept in zip(weights.tables.values(), before, strict=True):
        np.testing.assert_array_equal(table, kept)
    assert counted(weights, tokens_NT).log_likelihood == first.log_likelihood
