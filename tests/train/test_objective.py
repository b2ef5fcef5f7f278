import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models.build import build
from windlass.models.loss import IGNORED, summed_loss
from windlass.spec.shape import BertShape, DecoderShape
from windlass.train.objective import Causal, Masked

LLAMA = DecoderShape(
    vocabulary=50, context=16, layers=1, width=16, heads=2, kv_heads=2, ffn_width=32, tied=True
)
BERT = BertShape(vocabulary=50, context=16, layers=1, width=16, heads=2, ffn_width=32)


def test_causal_asks_for_each_next_token() -> None:
    tokens = np.arange(10, dtype=np.int64).reshape(2, 5)
    example = Causal().examples(tokens, np.arange(2))
    assert example.inputs_BT.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert example.targets_BT.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    assert example.num_targets == 8


@settings(deadline=None)
@given(st.integers(2, 64), st.floats(0.05, 0.9), st.integers(0, 2**31), st.integers(0, 10**9))
def test_masks_hide_the_right_share_and_depend_on_the_position_alone(
    length: int, share: float, seed: int, position: int
) -> None:
    masked = Masked(seed=seed, share=share, mask_token=49, vocabulary=50)
    tokens = np.full((2, length + 1), 7, dtype=np.int64)
    alone = masked.examples(tokens[:1], np.array([position]))
    beside = masked.examples(tokens, np.array([position + 1, position]))
    assert torch.equal(alone.inputs_BT[0], beside.inputs_BT[1])
    assert torch.equal(alone.targets_BT[0], beside.targets_BT[1])
    assert alone.num_targets == max(1, round(share * length))
    num_targets = alone.targets_BT != IGNORED
    assert int(num_targets.sum()) == alone.num_targets
    assert (alone.targets_BT[num_targets] == 7).all()
    assert (alone.inputs_BT[~num_targets] == 7).all()


@pytest.mark.parametrize("shape", [LLAMA, BERT], ids=["llama", "bert"])
def test_the_loss_and_its_gradient_equal_plain_cross_entropy(shape: DecoderShape | BertShape) -> None:
    model = build(shape, seed=1)
    tokens = torch.randint(0, 50, (3, 16), generator=torch.Generator().manual_seed(0))
    targets = tokens.clone()
    targets[:, ::3] = IGNORED
    loss = summed_loss(model, model(tokens), targets)
    loss.backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    plain = F.cross_entropy(model.logits(model(tokens)).flatten(0, 1), targets.flatten(), reduction="sum")
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)
