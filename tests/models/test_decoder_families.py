"""Every decoder family next to transformers, and exact under batching."""

from pathlib import Path

import pytest
import torch

from windlass.lab.torch.families_proof import compare
from windlass.lab.torch.family_cases import CASES, FamilyCase
from windlass.models.build import build
from windlass.models.feed_forward import Experts
from windlass.models.loss import summed_loss
from windlass.spec.model.decoder import DECODERS, FEATURES, DecoderShape

SIZES = {"vocabulary": 50, "context": 24, "layers": 3, "width": 32, "heads": 4, "ffn_width": 48}
SPARSE = {"experts": 4, "experts_per_token": 2, "expert_width": 24}


def shape_of(family: str) -> DecoderShape:
    has_experts = family in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss")
    return DecoderShape.model_validate({"family": family, **SIZES, **(SPARSE if has_experts else {})})


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_family_is_that_of_transformers_forwards_backwards_and_on_disk(
    case: FamilyCase, tmp_path: Path
) -> None:
    result = compare(case, tmp_path)
    assert result.is_equal, result


def test_every_family_has_a_case_and_a_row_of_features() -> None:
    assert set(FEATURES) == set(DECODERS)
    names = " ".join(case.config.lower() for case in CASES)
    assert all(family.replace("_", "").replace("3", "") in names.replace("3", "") for family in DECODERS)


@pytest.mark.parametrize("family", DECODERS)
def test_a_built_model_has_the_weights_that_its_shape_lists(family: str) -> None:
    shape = shape_of(family)
    model = build(shape, seed=1)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == shape.weight_sizes()
    assert model.parameter_count == shape.parameters


@pytest.mark.parametrize("family", DECODERS)
def test_a_token_does_not_depend_on_those_after_it(family: str) -> None:
    model = build(shape_of(family), seed=2).eval()
    tokens = torch.randint(0, 50, (2, 20))
    with torch.no_grad():
        whole = model.logits(model(tokens))
        start = model.logits(model(tokens[:, :11]))
    torch.testing.assert_close(whole[:, :11], start, rtol=1e-4, atol=1e-5)


def test_a_window_hides_what_is_farther_away() -> None:
    shape = DecoderShape(family="mistral", **SIZES | {"layers": 1}, window=4)
    model = build(shape, seed=3).eval()
    tokens = torch.randint(0, 49, (1, 20))
    other = tokens.clone()
    other[0, 5] += 1
    with torch.no_grad():
        same = (model(tokens) == model(other)).all(-1)[0]
    assert [place for place in range(20) if not same[place]] == [5, 6, 7, 8]


def test_every_token_reaches_its_experts_and_none_is_dropped() -> None:
    shape = shape_of("mixtral")
    experts = next(m for m in build(shape, seed=4).modules() if isinstance(m, Experts))
    x_ND = torch.randn(37, shape.width)
    weights_NP, chosen_NP = experts.route(x_ND)
    torch.testing.assert_close(weights_NP.sum(-1), torch.ones(37))
    by_hand = torch.stack([
        sum(
            weight * experts.experts[str(int(number))](x_D[None])[0]
            for weight, number in zip(weights, numbers, strict=True)
        )
        for x_D, weights, numbers in zip(x_ND, weights_NP, chosen_NP, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(experts(x_ND[None])[0], by_hand, rtol=1e-4, atol=1e-5)


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    shape = DecoderShape(family="mixtral", **SIZES, experts=8, experts_per_token=1, expert_width=16)
    model = build(shape, seed=5)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    summed_loss(model, model(tokens), tokens).backward()
    gradients = [p.grad for name, p in model.named_parameters() if ".experts." in name]
    assert all(grad is not None for grad in gradients)
    assert any(not grad.any() for grad in gradients if grad is not None)


def test_the_balance_loss_moves_the_router_and_leaves_the_loss_as_it_is() -> None:
    shape = shape_of("mixtral")
    plain, balanced = build(shape, seed=6), build(shape.model_copy(update={"balance_loss": 0.1}), seed=6)
    tokens = torch.randint(0, 50, (2, 16))
    losses, routers = [], []
    for model in (plain, balanced):
        loss = summed_loss(model, model(tokens), tokens)
        loss.backward()
        losses.append(loss.detach())
        routers.append(model.get_parameter("layers.0.ffn.router.weight").grad)
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(routers[0], routers[1])


def test_capped_logits_have_the_gradient_of_their_definition() -> None:
    shape = DecoderShape(family="gemma2", **SIZES, logit_softcap=0.5)
    model = build(shape, seed=7)
    tokens = torch.randint(0, 50, (2, 16))
    summed_loss(model, model(tokens), tokens).backward()
    found = model.get_parameter("embedding.weight").grad
    model.zero_grad()
    logits = model.logits(model(tokens)).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, tokens.flatten(), reduction="sum").backward()
    torch.testing.assert_close(found, model.get_parameter("embedding.weight").grad)
