"""The cost models see the same model that the job file asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.sizes import sizes_of
from windlass.spec.shape import BertShape, DecoderShape, Network


@st.composite
def shapes(draw: st.DrawFn) -> Network:
    heads = draw(st.sampled_from([1, 2, 4, 8]))
    common = {
        "vocabulary": draw(st.integers(1000, 100_000)),
        "context": draw(st.sampled_from([32, 128])),
        "layers": draw(st.integers(1, 12)),
        "width": heads * 2 * draw(st.integers(32, 128)),
        "heads": heads,
        "ffn_width": draw(st.integers(256, 4096)),
    }
    family = draw(st.sampled_from([DecoderShape, BertShape]))
    if family is DecoderShape:
        kv_heads = draw(st.sampled_from([k for k in (1, 2, 4, 8) if k <= heads]))
        return DecoderShape(**common, kv_heads=kv_heads, tied=draw(st.booleans()))
    return family(**common)


@given(shapes())
def test_the_sizes_have_the_weights_of_the_shape_up_to_vectors_and_positions(shape: Network) -> None:
    vectors = shape.layers * (10 * shape.width + shape.ffn_width) + 10 * shape.width + shape.vocabulary
    positions, dense_of_the_head = shape.context * shape.width, shape.width**2
    missing = shape.parameters - sizes_of(shape).parameters
    assert 0 <= missing <= vectors + positions + dense_of_the_head


@given(shapes())
def test_a_layer_has_exactly_the_matrices_of_the_shape(shape: Network) -> None:
    assert sizes_of(shape).layer_weights == shape.layer_matrix_parameters


def test_an_encoder_attends_to_both_sides() -> None:
    sizes = {"vocabulary": 300, "context": 32, "layers": 2, "width": 64, "heads": 2, "ffn_width": 256}
    assert not sizes_of(BertShape(**sizes)).causal
    assert sizes_of(DecoderShape(family="gpt2", **sizes)).causal
