"""LoRA adapters as PEFT writes them: read, checked, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from windlass.serve.engine.adapters import CONFIG, WEIGHTS, load_adapter
from windlass.spec.errors import BadInput, Damaged, NotFound, WindlassError
from windlass.spec.shape import DecoderShape

LLAMA = DecoderShape(vocabulary=32, context=16, layers=2, width=16, heads=4, kv_heads=2, ffn_width=24)
GPT2 = DecoderShape(family="gpt2", vocabulary=32, context=16, layers=1, width=16, heads=4, ffn_width=24)
QUERY = "base_model.model.model.layers.1.self_attn.q_proj"


def random(*size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(7).standard_normal(size).astype(np.float32)


def write(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"]}
    (folder / CONFIG).write_text(json.dumps(given | config))
    return folder


def sides(module: str, rows: int, columns: int, rank: int = 4) -> dict[str, Any]:
    return {f"{module}.lora_A.weight": random(rank, columns), f"{module}.lora_B.weight": random(rows, rank)}


def test_a_pair_is_found_under_our_name(tmp_path: Path) -> None:
    tensors = sides(QUERY, 16, 16)
    adapter = load_adapter(write(tmp_path / "poet", tensors), LLAMA)
    assert (adapter.name, adapter.rank, adapter.scale) == ("poet", 4, 2.0)
    ((down, up),) = [adapter.matrices["layers.1.attention.query.weight"]]
    assert np.array_equal(down, tensors[f"{QUERY}.lora_A.weight"])
    assert np.array_equal(up, tensors[f"{QUERY}.lora_B.weight"])


def test_rank_stabilised_adapters_are_scaled_by_the_root(tmp_path: Path) -> None:
    assert load_adapter(write(tmp_path, sides(QUERY, 16, 16), use_rslora=True), LLAMA).scale == 4.0


def test_the_joined_matrix_of_gpt2_becomes_three(tmp_path: Path) -> None:
    tensors = sides("base_model.model.transformer.h.0.attn.c_attn", 48, 16)
    adapter = load_adapter(write(tmp_path, tensors, fan_in_fan_out=True), GPT2)
    names = [f"layers.0.attention.{part}.weight" for part in ("query", "key", "value")]
    assert list(adapter.matrices) == names
    whole = np.concatenate([adapter.matrices[name][1] for name in names])
    assert np.array_equal(whole, tensors["base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"])


def test_the_matrices_of_every_layer_can_be_adapted(tmp_path: Path) -> None:
    names = {"self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key",
             "self_attn.v_proj": "attention.value", "self_attn.o_proj": "attention.output",
             "mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up", "mlp.down_proj": "ffn.down"}  # fmt: skip
    sizes = LLAMA.weight_sizes()
    tensors: dict[str, Any] = {}
    for theirs, ours in names.items():
        rows, columns = sizes[f"layers.0.{ours}.weight"]
        tensors |= sides(f"base_model.model.model.layers.0.{theirs}", rows, columns)
    adapter = load_adapter(write(tmp_path, tensors), LLAMA)
    assert set(adapter.matrices) == {f"layers.0.{ours}.weight" for ours in names.values()}


@pytest.mark.parametrize(
    "setting",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 8}},
        {"alpha_pattern": {"q_proj": 8}},
        {"peft_type": "IA3"},
        {"r": 0},
        {"r": "4"},
        {"lora_alpha": None},
    ],
)
def test_a_setting_that_is_not_plain_lora_is_refused_by_name(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(setting))):
        load_adapter(write(tmp_path, sides(QUERY, 16, 16), **setting), LLAMA)


@pytest.mark.parametrize(
    "module", ["base_model.model.lm_head", "base_model.model.model.layers.2.self_attn.q_proj", "other.thing"]
)
def test_a_target_that_the_model_does_not_have_is_refused(tmp_path: Path, module: str) -> None:
    with pytest.raises(BadInput, match="does not have"):
        load_adapter(write(tmp_path, sides(module, 16, 16)), LLAMA)


@pytest.mark.parametrize(
    "module", ["experts.1.up_proj", "gate", "shared_expert.up_proj", "shared_expert_gate"]
)
def test_experts_cannot_be_adapted_but_the_other_matrices_can(tmp_path: Path, module: str) -> None:
    shape = DecoderShape(
        family="qwen2_moe", vocabulary=32, context=16, layers=2, width=16, heads=4, ffn_width=24, experts=2,
        experts_per_token=1, expert_width=24, shared_width=24, shared_gate=True,
    )  # fmt: skip
    assert load_adapter(write(tmp_path / "a", sides(QUERY, 16, 16)), shape).matrices
    tensors = sides(f"base_model.model.model.layers.0.mlp.{module}", 24, 16)
    with pytest.raises(BadInput, match=f"cannot be adapted: .*{module}"):
        load_adapter(write(tmp_path / "b", tensors), shape)


def test_an_adapter_of_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="4 x 20 instead of 4 x 16"):
        load_adapter(write(tmp_path, sides(QUERY, 16, 20)), LLAMA)


def test_half_an_adapter_is_refused(tmp_path: Path) -> None:
    tensors = sides(QUERY, 16, 16)
    del tensors[f"{QUERY}.lora_B.weight"]
    with pytest.raises(Damaged, match="one side is missing"):
        load_adapter(write(tmp_path, tensors), LLAMA)


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    tensors = sides(QUERY, 16, 16)
    tensors[f"{QUERY}.lora_A.weight"][0, 0] = np.nan
    with pytest.raises(Damaged, match="not finite"):
        load_adapter(write(tmp_path, tensors), LLAMA)


def test_a_directory_without_an_adapter_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"adapter_config\.json"):
        load_adapter(tmp_path, LLAMA)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_header_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = write(tmp_path_factory.mktemp("adapter"), sides(QUERY, 16, 16))
    data = bytearray((folder / WEIGHTS).read_bytes())
    length = int.from_bytes(data[:8], "little")
    data[place % (8 + length)] ^= 1 << bit
    (folder / WEIGHTS).write_bytes(data)
    try:
        adapter = load_adapter(folder, LLAMA)
    except WindlassError:
        return
    assert set(adapter.matrices) <= set(LLAMA.weight_sizes())
