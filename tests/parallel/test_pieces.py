"""What one process holds and computes of a model, without any network."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.models.build import build, first_value, outline
from windlass.models.loss import IGNORED, summed_loss
from windlass.parallel.activation_checkpoint import recompute_blocks
from windlass.parallel.context_parallel import own_tokens
from windlass.parallel.param_shard import Slice, whole
from windlass.parallel.partition import cut_model
from windlass.parallel.stage import ModelStage
from windlass.parallel.vocab_loss import repeatable_loss
from windlass.spec.layout import Layout
from windlass.spec.shape import BertShape, DecoderShape, Network

SIZES = {"vocabulary": 37, "context": 16, "layers": 3, "width": 16, "heads": 2, "ffn_width": 24}
SHAPES = {
    "llama": DecoderShape(**SIZES, kv_heads=1, tied=True),
    "llama untied": DecoderShape(**SIZES, kv_heads=2, tied=False),
    "gpt2": DecoderShape(family="gpt2", **SIZES),
    "bert": BertShape(**SIZES),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 40))
def test_parts_of_a_box_cover_it_once_and_in_order(size: int, parts: int, start: int) -> None:
    box = Slice(((start, start + size), (2, 5)))
    pieces = [box.divided(0, parts, part) for part in range(parts)]
    rows = [row for piece in pieces for row in range(*piece.spans[0])]
    assert rows == list(range(start, start + size))
    assert all(piece.spans[1] == (2, 5) for piece in pieces)


def test_a_box_finds_itself_inside_another() -> None:
    tensor = torch.arange(24).reshape(4, 6)
    outer, inner = Slice(((1, 4), (0, 5))), Slice(((2, 3), (3, 6)))
    common = outer.overlap(inner)
    assert common == Slice(((2, 3), (3, 5)))
    held = tensor[outer.within(whole((4, 6)))]
    assert torch.equal(held[common.within(outer)], tensor[2:3, 3:5])
    assert outer.overlap(Slice(((0, 1), (0, 6)))) is None


@given(st.sampled_from([2, 3, 4]), st.sampled_from([24, 48]), st.booleans())
def test_processes_divide_the_tokens_of_a_sequence_without_rest(
    parts: int, context: int, causal: bool
) -> None:
    tokens = [own_tokens(context, parts, part, causal=causal) for part in range(parts)]
    assert sorted(torch.cat(tokens).tolist()) == list(range(context))
    work = [int((own + 1).sum()) for own in tokens]
    assert not causal or len(set(work)) == 1, "under a causal mask all have the same work"


@each_shape
def test_stages_together_compute_what_the_model_computes(shape: Network) -> None:
    layout = Layout(pp=3)
    cut = cut_model(shape, layout)
    model = build(shape, seed=3)
    tokens = torch.randint(0, shape.vocabulary, (2, shape.context))
    x = tokens
    for piece in cut.pieces:
        stage = ModelStage(outline(shape), piece, None).to_empty(device="cpu")
        stage.model.place_tables(torch.device("cpu"))
        with torch.no_grad():
            for name, parameter in stage.model.named_parameters():
                parameter.copy_(first_value(stage.model, name, parameter.shape, 3))
            x = stage(x)
    assert torch.equal(x, model(tokens))
    assert torch.allclose(stage.model.logits(x), model.logits(model(tokens)))


@each_shape
def test_a_stage_holds_nothing_of_the_others(shape: Network) -> None:
    cut = cut_model(shape, Layout(pp=3))
    stages = [ModelStage(outline(shape), piece, None) for piece in cut.pieces]
    names = [set(dict(stage.model.named_parameters())) for stage in stages]
    every = set(dict(outline(shape).named_parameters()))
    assert set.union(*names) == every
    twice = {name for name in every if sum(name in held for held in names) > 1}
    assert twice <= {"embedding.weight"}
    assert names[1] == {name for name in every if name.startswith("layers.1.")}


@each_shape
def test_the_loss_that_can_go_back_twice_is_the_same_loss(shape: Network) -> None:
    model = build(shape, seed=3)
    x_BTD = torch.randn(2, shape.context, shape.width, requires_grad=True)
    targets_BT = torch.randint(0, shape.vocabulary, (2, shape.context))
    targets_BT[0, :5] = IGNORED
    slopes = []
    for loss in (summed_loss, repeatable_loss):
        value = loss(model, x_BTD, targets_BT)
        inputs = [x_BTD, model.output_weight]
        slopes.append((value, *torch.autograd.grad(value, inputs, retain_graph=loss is repeatable_loss)))
        if loss is repeatable_loss:
            torch.autograd.grad(value, inputs)  # a second time
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@each_shape
@pytest.mark.parametrize("what", ["selective", "full"])
def test_recomputing_changes_no_bit_of_the_gradients(shape: Network, what: str) -> None:
    tokens = torch.randint(0, shape.vocabulary, (2, shape.context))
    gradients = []
    for policy in ("none", what):
        model = build(shape, seed=3)
        recompute_blocks(model, policy)
        summed_loss(model, model(tokens), tokens).backward()
        gradients.append([p.grad for p in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert (kept is None and recomputed is None) or torch.equal(kept, recomputed)
