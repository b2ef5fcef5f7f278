"""The law of loss stays sane at any scale."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.local.machine import MachineFacts
from windlass.plan.loss import BESIROGLU, HOFFMANN, REPEATS_FADE, expected_loss, useful_tokens
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job

weights = st.floats(1e3, 1e12)
tokens = st.floats(1e2, 1e14)
vocabularies = st.integers(16, 300_000)


@given(weights, tokens, vocabularies)
def test_no_loss_is_expected_above_that_of_knowing_nothing(n: float, d: float, vocabulary: int) -> None:
    assert 0 < expected_loss(n, d, 1e15, vocabulary) < math.log(vocabulary)


@given(weights, tokens, vocabularies, st.floats(1.01, 100))
def test_more_weights_and_more_tokens_never_hurt(n: float, d: float, vocabulary: int, more: float) -> None:
    loss = expected_loss(n, d, 1e15, vocabulary)
    assert expected_loss(n * more, d, 1e15, vocabulary) <= loss
    assert expected_loss(n, d * more, 1e15, vocabulary) <= loss


def test_the_published_law_is_reproduced_at_its_own_scale() -> None:
    """Chinchilla: 70B weights and 1.4T tokens; 1.93 by Hoffmann's coefficients, 1.97 by Besiroglu's."""
    assert HOFFMANN.loss(70e9, 1.4e12) == pytest.approx(1.937, abs=0.001)
    assert BESIROGLU.loss(70e9, 1.4e12) == pytest.approx(1.973, abs=0.001)


@given(tokens, st.floats(1e3, 1e13))
def test_repeated_text_is_worth_less_than_fresh_text(d: float, corpus: float) -> None:
    worth = useful_tokens(d, corpus)
    assert worth <= d * (1 + 1e-9)
    assert worth <= corpus * (1 + REPEATS_FADE) * (1 + 1e-9)
    if d <= corpus:
        assert worth == pytest.approx(d)


def test_four_epochs_are_nearly_as_good_as_fresh_text() -> None:
    """The finding that the paper is known for (Muennighoff et al. 2023, arXiv:2305.16264)."""
    assert useful_tokens(4e9, 1e9) > 0.9 * 4e9
    assert useful_tokens(40e9, 1e9) < 0.5 * 40e9


@pytest.mark.parametrize(
    ("vocabulary", "n", "d", "corpus", "came"),
    [
        (72, 795_648, 1.536e6, 1.0e6, 1.801),  # recipes/shakespeare-char.toml
        (512, 491_520, 6.19e6, 2e7, 2.328),  # Python's library, as all below
        (1024, 225_280, 124_416, 1.1e7, 5.248),
        (1024, 59_392, 374_528, 1.1e7, 4.713),
        (1024, 19_712, 422_912, 1.1e7, 4.682),
    ],
)
def test_small_runs_that_were_made_are_expected_about_as_they_came(
    vocabulary: int, n: float, d: float, corpus: float, came: float
) -> None:
    assert expected_loss(n, d, corpus, vocabulary) == pytest.approx(came, rel=0.2)


def test_nothing_is_expected_of_masked_tokens() -> None:
    machine = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
    corpus = CorpusFacts("c", "d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)
    masked = plan_run(Job.model_validate({"model": {"family": "bert"}}), corpus, machine)
    causal = plan_run(Job.model_validate({"model": {"family": "gpt2"}}), corpus, machine)
    assert masked.predicted.loss is None
    assert causal.predicted.loss is not None
