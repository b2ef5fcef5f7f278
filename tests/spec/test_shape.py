"""Weights and FLOPs that follow from sizes alone; tests/models compares them with built models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windlass.spec.shape import BertShape, DecoderShape, RopeScaling

LLAMA_8B = DecoderShape(
    vocabulary=128256, context=131072, layers=32, width=4096, heads=32, kv_heads=8, ffn_width=14336
)
GPT2_SMALL = DecoderShape(
    family="gpt2", vocabulary=50257, context=1024, layers=12, width=768, heads=12, ffn_width=3072
)
BERT_BASE = BertShape(vocabulary=30522, context=512, layers=12, width=768, heads=12, ffn_width=3072)


def test_published_models_have_their_published_counts() -> None:
    assert LLAMA_8B.parameters == 8_030_261_248
    assert GPT2_SMALL.parameters == 124_439_808
    assert BERT_BASE.parameters == 109_514_298


def test_tying_saves_exactly_one_embedding_matrix() -> None:
    tied = LLAMA_8B.model_copy(update={"tied": True})
    assert LLAMA_8B.parameters - tied.parameters == 128256 * 4096
    assert LLAMA_8B.matrix_parameters == tied.matrix_parameters


@given(st.integers(1, 4096))
def test_training_costs_three_forward_passes(length: int) -> None:
    for shape in (LLAMA_8B, GPT2_SMALL, BERT_BASE):
        assert shape.training_flops_per_token(length) == 3 * shape.forward_flops_per_token(length)


def test_short_sequences_cost_two_flops_per_matrix_weight_and_a_little_attention() -> None:
    assert GPT2_SMALL.forward_flops_per_token(1) == 2 * GPT2_SMALL.matrix_parameters + 4 * 12 * 768
    assert BERT_BASE.forward_flops_per_token(1) == 2 * BERT_BASE.matrix_parameters + 4 * 12 * 768


def test_a_causal_token_sees_half_of_the_keys_and_a_bert_token_all() -> None:
    assert GPT2_SMALL.seen_keys(9) == 5.0
    assert BERT_BASE.seen_keys(9) == 9.0


def test_without_a_length_the_whole_context_is_meant() -> None:
    assert GPT2_SMALL.forward_flops_per_token() == GPT2_SMALL.forward_flops_per_token(1024)


def test_a_head_width_may_be_given_apart_from_the_width() -> None:
    shape = LLAMA_8B.model_copy(update={"explicit_head_width": 256})
    assert (shape.head_width, shape.attention_width) == (256, 32 * 256)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"heads": 3}, "width 4096 is not a multiple of heads 3"),
        ({"kv_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
        ({"explicit_head_width": 7}, "head width 7 is odd"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"depth": 3}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_sizes_are_refused_with_the_reason(change: dict[str, int], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        DecoderShape.model_validate(LLAMA_8B.model_dump() | change)


def test_rope_factors_must_be_ordered() -> None:
    with pytest.raises(ValidationError, match="high_freq_factor must be greater"):
        RopeScaling(low_freq_factor=4.0, high_freq_factor=4.0)
