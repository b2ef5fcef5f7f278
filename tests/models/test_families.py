"""The families beside their shapes, and the promises of the interface, on tiny models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from windlass.models.build import build, outline
from windlass.spec.shape import BertShape, DecoderShape, MlpShape, Network, RopeScaling

AnyShape = Network

TINY: list[AnyShape] = [
    DecoderShape(vocabulary=61, context=32, layers=2, width=24, heads=6, kv_heads=2, ffn_width=40),
    DecoderShape(
        vocabulary=61, context=32, layers=2, width=24, heads=3, kv_heads=3, ffn_width=40, tied=True,
        rope_theta=500.0, rope_scaling=RopeScaling(original_context=16),
    ),
    DecoderShape(family="gpt2", vocabulary=61, context=32, layers=2, width=24, heads=3, ffn_width=50),
    BertShape(vocabulary=61, context=32, layers=2, width=24, heads=3, ffn_width=50),
    MlpShape(vocabulary=61, context=32, layers=2, width=24, ffn_width=50, window=5),
]  # fmt: skip
every_family = pytest.mark.parametrize("shape", TINY, ids=lambda s: s.family)
every_causal_family = pytest.mark.parametrize("shape", [*TINY[:3], TINY[4]], ids=lambda s: s.family)


def sizes(family: str) -> st.SearchStrategy[AnyShape]:
    small = st.integers(1, 9)
    every = {
        "vocabulary": st.integers(1, 70), "context": st.integers(1, 40), "layers": st.integers(1, 3),
        "ffn_width": st.integers(1, 50),
    }  # fmt: skip
    if family == "llama":
        return st.builds(
            lambda heads, groups, head, width, **rest: DecoderShape(
                heads=heads * groups, kv_heads=heads, explicit_head_width=2 * head, width=width, **rest
            ),
            heads=small, groups=small, head=small, width=small, tied=st.booleans(), **every,
        )  # fmt: skip
    if family == "gpt2":
        return st.builds(
            lambda heads, head, **rest: DecoderShape(family="gpt2", heads=heads, width=heads * head, **rest),
            heads=small, head=small, **every,
        )  # fmt: skip
    if family == "mlp":
        return st.builds(MlpShape, width=small, window=small, **every)
    return st.builds(
        lambda heads, head, **rest: BertShape(heads=heads, width=heads * head, **rest),
        heads=small, head=small, token_types=st.integers(1, 4), **every,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["llama", "gpt2", "bert", "mlp"]).flatmap(sizes))
def test_the_counted_weights_are_those_of_the_built_model(shape: AnyShape) -> None:
    assert outline(shape).parameter_count == shape.parameters


def test_llama_31_8b_has_8_030_261_248_weights() -> None:
    shape = DecoderShape(
        vocabulary=128256, context=131072, layers=32, width=4096, heads=32, kv_heads=8, ffn_width=14336,
        rope_theta=500000.0, rope_scaling=RopeScaling(),
    )  # fmt: skip
    assert build(shape, device="meta").parameter_count == shape.parameters == 8_030_261_248


def test_gpt2_small_has_124_439_808_weights() -> None:
    shape = DecoderShape(
        family="gpt2", vocabulary=50257, context=1024, layers=12, width=768, heads=12, ffn_width=3072
    )
    assert build(shape, device="meta").parameter_count == shape.parameters == 124_439_808


def test_bert_base_has_109_514_298_weights() -> None:
    shape = BertShape(vocabulary=30522, context=512, layers=12, width=768, heads=12, ffn_width=3072)
    assert build(shape, device="meta").parameter_count == shape.parameters == 109_514_298


@every_family
def test_equal_seeds_give_equal_bits_and_other_seeds_other_bits(shape: AnyShape) -> None:
    one, same, other = (dict(build(shape, seed=s).named_parameters()) for s in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


@every_family
def test_first_weights_are_normal_around_zero_with_whole_norms_and_no_bias(shape: AnyShape) -> None:
    model = build(shape.model_copy(update={"width": 240, "layers": 8}), seed=1)
    for name, parameter in model.named_parameters():
        small = bool(model.residual) and name.endswith(model.residual)
        if parameter.dim() > 1 and parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.005 if small else 0.02, rel=0.2), name
        elif parameter.dim() == 1:
            assert parameter.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name


@every_family
def test_scores_are_the_product_of_features_and_output_matrix(shape: AnyShape) -> None:
    model = build(shape, seed=1)
    x_BTD = model(tokens(shape))
    scores = model.features(x_BTD) @ model.output_weight.T
    if model.output_bias is not None:
        scores = scores + model.output_bias
    assert x_BTD.shape == (3, 20, shape.width)
    torch.testing.assert_close(model.logits(x_BTD), scores)


@every_causal_family
def test_a_causal_token_does_not_see_those_after_it(shape: AnyShape) -> None:
    model = build(shape, seed=1)
    before = tokens(shape)
    after = before.clone()
    after[:, 12:] = (after[:, 12:] + 1) % shape.vocabulary
    torch.testing.assert_close(model(before)[:, :12], model(after)[:, :12])
    assert not torch.allclose(model(before)[:, 12:], model(after)[:, 12:])


def test_an_mlp_token_sees_its_window_and_nothing_before_it() -> None:
    model = build(TINY[4], seed=1)
    before = tokens(TINY[4])
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % 61
    changed = (model(before) != model(after)).any(dim=-1).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [7, 8, 9, 10, 11]


def test_a_bert_token_sees_those_after_it() -> None:
    model = build(TINY[3], seed=1)
    before = tokens(TINY[3])
    after = before.clone()
    after[:, 19] = (after[:, 19] + 1) % 61
    assert not torch.allclose(model(before)[:, 0], model(after)[:, 0], atol=1e-7)


@every_family
def test_padding_does_not_change_the_tokens_before_it(shape: AnyShape) -> None:
    model = build(shape, seed=1)
    whole = tokens(shape)
    mask = torch.ones_like(whole, dtype=torch.bool)
    mask[:, 13:] = False
    torch.testing.assert_close(model(whole, key_mask_BT=mask)[:, :13], model(whole[:, :13]))


@every_causal_family
def test_padding_in_front_with_shifted_positions_changes_nothing(shape: AnyShape) -> None:
    model = build(shape, seed=1)
    text = tokens(shape)[:, :8]
    padded = torch.cat((torch.zeros(3, 5, dtype=torch.long), text), dim=1)
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[:, :5] = False
    positions = (torch.arange(13) - 5).clamp(min=0).expand(3, -1)
    out = model(padded, key_mask_BT=mask, positions_BT=positions)
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, 5:], model(text))


@every_family
def test_explicit_positions_from_zero_are_the_default(shape: AnyShape) -> None:
    model = build(shape, seed=1)
    positions = torch.arange(20).expand(3, -1)
    torch.testing.assert_close(model(tokens(shape), positions_BT=positions), model(tokens(shape)))


@every_family
def test_bfloat16_scores_are_near_those_of_float32(shape: AnyShape) -> None:
    wide, narrow = build(shape, seed=1), build(shape, seed=1, dtype=torch.bfloat16)
    scores = narrow.logits(narrow(tokens(shape)))
    assert scores.dtype == torch.bfloat16
    torch.testing.assert_close(scores.float(), wide.logits(wide(tokens(shape))), atol=0.05, rtol=0.05)


@pytest.mark.slow
@every_family
def test_the_compiler_takes_a_family_whole_and_changes_neither_scores_nor_gradients(shape: AnyShape) -> None:
    plain, compiled = build(shape, seed=1), build(shape, seed=1)
    run = torch.compile(compiled, fullgraph=True)
    for model, forward in ((plain, plain), (compiled, run)):
        model.logits(forward(tokens(shape))).square().mean().backward()
    for one, two in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-6, rtol=1e-3)


def tokens(shape: AnyShape) -> Tensor:
    return torch.randint(0, shape.vocabulary, (3, 20), generator=torch.Generator().manual_seed(5))
