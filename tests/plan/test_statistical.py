"""Costs of counted models follow the laws that their papers state."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.statistical import (
    Work,
    distinct_ngrams,
    embedding_work,
    hidden_markov_work,
    kept_ngrams,
    mlp_work,
    ngram_work,
)

tokens = st.floats(1e4, 1e11)


@given(tokens, st.floats(1.0, 2.0), st.floats(1, 1e3))
def test_a_text_never_has_more_ngrams_than_tokens_nor_fewer_than_its_sample(
    sample: float, growth: float, more: float
) -> None:
    whole = sample / 2
    found = distinct_ngrams(whole / growth, whole, sample, sample * more)
    assert whole * 0.999 <= found <= sample * more


def test_types_grow_with_the_power_that_the_sample_shows() -> None:
    """Twice the text had the root of two as many types; a hundred times the text has ten times as many."""
    assert distinct_ngrams(1000, 1000 * math.sqrt(2), 1e5, 1e7) == pytest.approx(10_000 * math.sqrt(2))


@pytest.mark.parametrize("cutoff", [0, 1, 2, 5])
def test_a_cutoff_keeps_what_zipfs_spectrum_says(cutoff: int) -> None:
    spectrum = sum(1 / (f * (f + 1)) for f in range(1, cutoff + 1))
    assert kept_ngrams(1e6, cutoff) == pytest.approx(1e6 * (1 - spectrum))


def test_pruning_makes_the_model_smaller_and_not_the_work() -> None:
    distinct = [2e4, 1e6, 5e6]
    whole, pruned = ngram_work(1e7, distinct), ngram_work(1e7, distinct, cutoffs=[0, 1, 1])
    assert pruned.model_bytes == pytest.approx(whole.model_bytes * (2e4 + 5e5 + 2.5e6) / (2e4 + 1e6 + 5e6))
    assert (pruned.flops, pruned.moved_bytes) == (whole.flops, whole.moved_bytes)


@given(tokens, st.integers(2, 500), st.integers(1, 50))
def test_baum_welch_takes_time_with_the_square_of_the_states(text: float, states: int, rounds: int) -> None:
    one = hidden_markov_work(text, states, 1000, rounds)
    two = hidden_markov_work(text, 2 * states, 1000, rounds)
    assert 2 < two.flops / one.flops <= 4
    assert one.flops >= 6 * rounds * text * states**2


@given(tokens, st.integers(1, 20), st.integers(1, 20))
def test_a_wider_window_and_more_negatives_cost_in_proportion(
    text: float, window: int, negatives: int
) -> None:
    base = embedding_work(text, 10_000, 100, window=window, negatives=0).flops
    assert embedding_work(text, 10_000, 100, window=window, negatives=negatives).flops == pytest.approx(
        base * (1 + negatives)
    )


def test_a_perceptron_costs_as_any_trained_model_six_flops_a_weight_and_token() -> None:
    work = mlp_work(1e6, 5000, 64, context=4, hidden=256)
    assert work.flops == pytest.approx(6 * 1e6 * (4 * 64 * 256 + 256 * 5000))


@given(tokens, st.floats(1.1, 100))
def test_more_text_is_never_cheaper(text: float, more: float) -> None:
    def works(amount: float) -> list[Work]:
        return [
            ngram_work(amount, [1e4, 1e6]),
            hidden_markov_work(amount, 32, 1000, 10),
            embedding_work(amount, 1000, 64),
            mlp_work(amount, 1000, 64, context=3, hidden=128),
        ]

    for less, greater in zip(works(text), works(text * more), strict=True):
        assert all(b >= a for a, b in zip(astuple(less), astuple(greater), strict=True))
        assert greater.seconds(1e11, 1e10) >= less.seconds(1e11, 1e10)


def test_the_slower_of_arithmetic_and_memory_decides() -> None:
    work = Work(flops=1e12, moved_bytes=1e9, memory_bytes=0, model_bytes=0)
    assert work.seconds(1e11, 1e10) == 10
    assert work.seconds(1e14, 1e8) == 10
