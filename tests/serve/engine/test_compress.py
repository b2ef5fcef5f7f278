"""Smaller copies of models: what is in them, what reads them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from windlass.models.__main__ import convert
from windlass.models.build import build
from windlass.models.huggingface import load_model, save_model
from windlass.models.weights import Float, Grouped, load_weights
from windlass.serve.engine.compression.calibrate import second_moments
from windlass.serve.engine.compression.compress import compress
from windlass.serve.engine.compression.perplexity import summed_loss
from windlass.serve.engine.load import LoadOptions, load_runner
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.shape import BertShape, DecoderShape, Network

LLAMA = DecoderShape(vocabulary=97, context=40, layers=2, width=64, heads=4, kv_heads=2, ffn_width=96)
SMALL: dict[str, Any] = {
    "vocabulary": 97, "context": 40, "layers": 2, "width": 48, "heads": 3, "ffn_width": 64,
}  # fmt: skip
SHAPES: dict[str, Network] = {
    "llama": LLAMA,
    "llama tied": LLAMA.model_copy(update={"tied": True}),
    "llama odd sizes": LLAMA.model_copy(update={"width": 40, "ffn_width": 37}),
    "gpt2": DecoderShape(family="gpt2", vocabulary=97, context=40, layers=2, width=48, heads=3, ffn_width=64),
    "gemma2": DecoderShape(**SMALL, family="gemma2", window=7, window_layers=(0,), attention_scale=0.2),
    "phi": DecoderShape(**SMALL, family="phi"),
    "qwen2_moe": DecoderShape(
        **SMALL, family="qwen2_moe", experts=4, experts_per_token=2, expert_width=32, shared_width=40,
        shared_gate=True,
    ),
}  # fmt: skip

BERT = BertShape(vocabulary=53, context=32, layers=1, width=48, heads=3, ffn_width=37)


def saved(shape: Network, folder: Path) -> Path:
    save_model(build(shape, seed=2), folder)
    return folder


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_matrices_become_integers_and_the_rest_stays(shape: Network, precision: str, tmp_path: Path) -> None:
    source = saved(shape, tmp_path / "a")
    told = compress(source, tmp_path / "b", precision, None)
    before, after = load_weights(source), load_weights(tmp_path / "b")
    assert (told["was"], told["weights"]) == ("float32", precision)
    assert (after.shape, after.precision) == (shape, precision)
    for name, size in before.sizes.items():
        old, new = before.get(name).widened(), after.get(name).widened()
        if len(size) == 1:
            np.testing.assert_array_equal(new, old)
        else:
            assert np.abs(new - old).max() < (0.01 if precision == "int4" else 0.002), name


def test_the_head_keeps_eight_bits_and_a_table_of_its_own_two_bytes(tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int4", None)
    weights = load_weights(tmp_path / "b")
    head, inner, table = (
        weights.get(name) for name in ("head.weight", "layers.0.ffn.up.weight", "embedding.weight")
    )
    assert isinstance(head, Grouped)
    assert isinstance(inner, Grouped)
    assert isinstance(table, Float)
    assert (head.bits, inner.bits, table.values.dtype) == (8, 4, np.uint16)


@pytest.mark.parametrize("shape", [LLAMA, SHAPES["gpt2"], BERT], ids=["llama", "gpt2", "bert"])
def test_bfloat16_is_a_directory_that_anyone_reads(shape: Network, tmp_path: Path) -> None:
    source = saved(shape, tmp_path / "a")
    compress(source, tmp_path / "b", "bfloat16", None)
    original, rounded = load_model(source).state_dict(), load_model(tmp_path / "b").state_dict()
    assert all(torch.equal(rounded[name], original[name].bfloat16()) for name in original)


def test_torch_loads_integers_as_what_they_stand_for(tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int4", None)
    weights, model = load_weights(tmp_path / "b"), load_model(tmp_path / "b")
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.float().numpy(), weights.get(name).widened(), err_msg=name)


def test_what_is_integers_already_is_not_rounded_again(tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int8", None)
    with pytest.raises(BadInput, match="already int8"):
        compress(tmp_path / "b", tmp_path / "c", "int4", None)
    assert not (tmp_path / "c").exists()


def test_bert_is_refused_with_what_works(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="bert") as caught:
        compress(saved(BERT, tmp_path / "a"), tmp_path / "b", "int8", None)
    assert "--weights bfloat16" in str(caught.value)


def test_an_expert_without_tokens_is_quantised_without_calibration() -> None:
    shape = DecoderShape(**SMALL, family="mixtral", experts=8, experts_per_token=1, expert_width=32)
    names = [f"layers.0.ffn.experts.{expert}.down.weight" for expert in range(8)]
    found = second_moments(build(shape, seed=3).eval(), np.array([[5, 6]]), names)
    assert 1 <= sum(moments is not None for moments in found.values()) <= 2


def test_converting_integers_must_be_requested(tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int8", None)
    with pytest.raises(BadInput, match="only Windlass reads"):
        convert(tmp_path / "b", tmp_path / "c")
    convert(tmp_path / "b", tmp_path / "c", dequantise=True)
    ours, theirs = load_model(tmp_path / "b").state_dict(), load_model(tmp_path / "c").state_dict()
    assert load_weights(tmp_path / "c").precision == "float32"
    assert all(torch.equal(ours[name].float(), theirs[name].float()) for name in ours)


@pytest.mark.parametrize("broken", ["missing", "cut", "kind", "narrow groups"])
def test_integers_that_do_not_fit_are_refused(broken: str, tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int8", None)
    (tmp_path / "b" / "manifest.json").unlink()
    file, name = tmp_path / "b" / "model.safetensors", "layers.0.ffn.up.weight.scale"
    tensors = load_file(file)
    scale = tensors.pop(name)
    changed = {"cut": scale[:-1], "kind": scale.half(), "narrow groups": scale.repeat(1, 8)}
    if broken in changed:
        tensors[name] = changed[broken].contiguous()
    save_file(tensors, file)
    with pytest.raises(BadInput, match=r"weights do not fit config\.json: .*layers\.0\.ffn\.up\.weight"):
        load_weights(tmp_path / "b")


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    model = build(LLAMA, seed=2)
    with torch.no_grad():
        model.get_parameter("layers.1.ffn.gate.weight")[3, 4] = float("nan")
    save_model(model, tmp_path / "a")
    with pytest.raises(BadInput, match=r"'layers\.1\.ffn\.gate\.weight' holds numbers that are not finite"):
        compress(tmp_path / "a", tmp_path / "b", "int8", None)


def test_flipped_bytes_are_found(tmp_path: Path) -> None:
    compress(saved(LLAMA, tmp_path / "a"), tmp_path / "b", "int8", None)
    file = tmp_path / "b" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 4
    file.write_bytes(data)
    with pytest.raises(Damaged, match="the bytes differ"):
        load_weights(tmp_path / "b")


@pytest.mark.parametrize("shape", [LLAMA, *(SHAPES[name] for name in ("gpt2", "gemma2", "phi"))])
def test_moments_are_those_of_what_goes_in(shape: Network, tmp_path: Path) -> None:
    model = build(shape, seed=3).eval()
    tokens = np.random.default_rng(1).integers(0, 97, (9, 20))
    seen: list[torch.Tensor] = []
    model.get_submodule("layers.1.ffn.down").register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    names = [
        f"layers.1.{part}.weight" for part in ("attention.query", "attention.value", "ffn.up", "ffn.down")
    ]
    found = second_moments(model, tokens, names)
    x = torch.cat([each.flatten(0, 1) for each in seen]).double()
    up, down = found["layers.1.ffn.up.weight"], found["layers.1.ffn.down.weight"]
    assert up is not None
    assert down is not None
    np.testing.assert_allclose(down, (x.T @ x / len(x)).numpy(), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(found[names[0]], found[names[1]])
    assert len(up) == shape.width


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_served_loss_is_that_of_torch_on_the_same_weights(
    shape: Network, precision: str, tmp_path: Path
) -> None:
    folder = saved(shape, tmp_path / "a")
    if precision != "float32":
        compress(folder, tmp_path / "b", precision, None)
        folder = tmp_path / "b"
    windows = np.random.default_rng(4).integers(0, 97, (3, 41))
    weights = load_weights(folder)
    assert isinstance(weights.shape, DecoderShape)
    served = summed_loss(load_runner(folder, weights, weights.shape, LoadOptions(threads=1)), windows)
    model = load_model(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        scores = model.logits(model(torch.from_numpy(windows[:, :-1])))
    targets = torch.from_numpy(windows[:, 1:]).flatten()
    wanted = torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets, reduction="sum").item()
    assert served == pytest.approx(wanted, rel=1e-5 if precision == "float32" else 2e-3)
