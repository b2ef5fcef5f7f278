"""What is exported as GGUF and read again is the same model, for every architecture of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from windlass.models.gguf.architectures import ARCHITECTURES, FALCON_40B, MIXTURE, Architecture
from windlass.models.gguf.dequantise import dequantise
from windlass.models.gguf.export_file import export_gguf
from windlass.models.gguf.ggml_types import TYPES
from windlass.models.gguf.hf_config import architecture_of, config_of
from windlass.models.gguf.quantise import quantise
from windlass.models.gguf.reader import GgufFile
from windlass.models.gguf.tensor_plan import plan_tensors
from windlass.models.gguf.tokenizer_files import tokenizer_files
from windlass.spec.errors import BadInput, InUse

ALL = {**ARCHITECTURES, "mixtral": MIXTURE, "falcon 40b": FALCON_40B}
SIZES: dict[str, Any] = {
    "vocab_size": 40, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 2,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-5,
    "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "sliding_window": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "attention_multiplier": 0.5, "embedding_multiplier": 12.0, "residual_multiplier": 0.25,
    "logits_scaling": 8.0, "original_max_position_embeddings": 64, "use_parallel_residual": False,
    "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_inner": 96, "n_head": 4, "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5, "rope_theta": 1000.0, "rotary_emb_base": 1000.0,
}  # fmt: skip


def directory_of(architecture: Architecture, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Write a random model of an architecture: every tensor of its table, of plausible sizes."""
    fields = {
        *architecture.fields,
        *architecture.optional,
        "vocab_size",
        architecture.partial,
        architecture.rotary,
    }
    config = {name: SIZES[name] for name in fields - {""}} | architecture.fixed
    if architecture.name == "phi3":
        config["sliding_window"] = None
    tied = architecture.always_tied
    config |= {"model_type": architecture.model_type, "tie_word_embeddings": tied}
    if architecture.head_width:
        config["head_dim"] = 16
    rng, heads = np.random.default_rng(5), 2 if architecture.name != "gptneox" else 4
    keys = heads * 16
    widths = {"attn_q": (64, 64), "attn_k": (keys, 64), "attn_v": (keys, 64), "attn_qkv": (64 + 2 * keys, 64),
              "attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96),
              "ffn_gate_inp": (3, 64), "ffn_gate_exps": (32, 64), "ffn_up_exps": (32, 64),
              "ffn_down_exps": (64, 32), "attn_q_norm": (16,), "attn_k_norm": (16,)}  # fmt: skip
    if architecture.name == "gpt2":
        widths["attn_qkv"] = (192, 64)
    tensors = {}
    for ours, theirs in architecture.outside.items():
        if ours != "output" or not tied:
            size = {"output_norm": (64,), "position_embd": (64, 64)}.get(ours, (40, 64))
            tensors[f"{theirs}.weight"] = rng.normal(0, 1, size).astype(np.float32)
    for layer in range(2):
        for ours, theirs in architecture.inside.items():
            size = widths.get(ours, (64,))
            count = 3 if "experts" in theirs else 4 if "attn_q" in ours else 2
            names = [theirs.format(n) for n in range(count)] if "{}" in theirs else [theirs]
            turned = theirs in architecture.transposed
            for name in names:
                values = rng.normal(0, 1, size[::-1] if turned else size).astype(np.float32)
                tensors[f"{architecture.layer.format(layer)}.{name}.weight"] = values
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return config, tensors


@pytest.mark.parametrize("name", ALL)
def test_every_architecture_comes_back_with_its_tensors_and_fields(name: str, tmp_path: Path) -> None:
    config, tensors = directory_of(ALL[name], tmp_path)
    export_gguf(tmp_path, tmp_path / "out.gguf", "f32")
    file = GgufFile(tmp_path / "out.gguf")
    architecture = architecture_of(file)
    assert architecture.model_type == ALL[name].model_type
    again = config_of(file, architecture, "float32")
    assert {key: again.get(key) for key in config} == config
    got = {
        each.name: np.concatenate(list(each.pieces(file))).reshape(each.shape)
        for each in plan_tensors(file, architecture, again)
    }
    assert got.keys() == tensors.keys()
    for key, values in tensors.items():
        offset = ALL[name].norm_offset and "norm" in key  # x + 1 - 1 rounds
        np.testing.assert_allclose(got[key], values, rtol=0, atol=1e-6 if offset else 0, err_msg=key)


@pytest.mark.parametrize(
    ("kind", "worst"),
    [("F32", 0), ("F16", 4e-4), ("BF16", 3e-3), ("Q8_0", 6e-3), ("Q4_0", 0.1), ("Q4_K", 0.085)],
)
def test_quantised_weights_are_as_near_as_their_format_allows(kind: str, worst: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.05, (64, 512)).astype(np.float32)
    values[0] = 0
    values[1] = 0.25
    raw = quantise(values, TYPES[kind])
    assert raw.shape == (64, TYPES[kind].nbytes(512))
    again = dequantise(raw, TYPES[kind])
    assert np.sqrt(np.square(again - values).mean() / np.square(values).mean()) <= worst
    np.testing.assert_array_equal(again[0], 0)
    np.testing.assert_allclose(again[1], 0.25, rtol=2e-2)


def test_matrices_get_the_type_and_norms_and_embeddings_more_bits(tmp_path: Path) -> None:
    directory_of(ARCHITECTURES["llama"], tmp_path)
    export_gguf(tmp_path, tmp_path / "out.gguf", "q4_0")
    kinds = {name: info.kind.name for name, info in GgufFile(tmp_path / "out.gguf").tensors.items()}
    assert (kinds["blk.0.ffn_up.weight"], kinds["blk.0.ffn_norm.weight"]) == ("Q4_0", "F32")
    assert (kinds["token_embd.weight"], kinds["output.weight"]) == ("Q8_0", "Q8_0")
    export_gguf(tmp_path, tmp_path / "k.gguf", "q4_k")  # rows of 64 fill no block of 256
    assert GgufFile(tmp_path / "k.gguf").tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"


def test_a_vocabulary_comes_back_token_for_token(tmp_path: Path, tiny_llama: Path) -> None:
    files = tokenizer_files(GgufFile(tiny_llama), 40)
    directory_of(ARCHITECTURES["llama"], tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    export_gguf(tmp_path, tmp_path / "out.gguf", "f16")
    before, after = GgufFile(tiny_llama).metadata, GgufFile(tmp_path / "out.gguf").metadata
    assert after["tokenizer.ggml.tokens"][:16] == before["tokenizer.ggml.tokens"]
    assert after["tokenizer.ggml.token_type"][:16].tolist() == before["tokenizer.ggml.token_type"].tolist()
    for key in ("merges", "model", "pre", "eos_token_id"):
        assert after[f"tokenizer.ggml.{key}"] == before[f"tokenizer.ggml.{key}"]


def test_what_llama_cpp_cannot_compute_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    config, _ = directory_of(ARCHITECTURES["llama"], tmp_path)
    (tmp_path / "there.gguf").touch()
    with pytest.raises(InUse):
        export_gguf(tmp_path, tmp_path / "there.gguf", "f16")
    for changes, sentence in (
        ({"model_type": "bert"}, "type 'bert' cannot be written"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling 'dynamic'"),
        ({"model_type": "mistral", "sliding_window": 16}, "no sliding window"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(BadInput, match=sentence):
            export_gguf(tmp_path, tmp_path / "out.gguf", "f16")
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads(tokenizer_files(GgufFile(tiny_llama), 40)["tokenizer.json"])
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "ByteLevel"}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadInput, match="no name in GGUF"):
        export_gguf(tmp_path, tmp_path / "out.gguf", "f16")
    assert not list(tmp_path.glob("*out.gguf*"))
    export_gguf(tmp_path, tmp_path / "named.gguf", "f16", "dbrx")
    assert GgufFile(tmp_path / "named.gguf").metadata["tokenizer.ggml.pre"] == "dbrx"
