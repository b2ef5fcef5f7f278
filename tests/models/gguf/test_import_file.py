"""A GGUF file becomes a model directory with the same numbers, words and ends of answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file

from windlass.models.gguf.hf_config import llama3_factors
from windlass.models.gguf.import_file import import_gguf
from windlass.spec.errors import BadInput, Damaged, InUse
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir

Write = Callable[..., Path]
Llama = tuple[dict[str, Any], dict[str, np.ndarray]]


def config_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def test_sizes_and_weights_of_a_llama_are_those_of_the_file(
    write: Write, llama: Llama, tmp_path: Path
) -> None:
    metadata, arrays = llama
    facts = import_gguf(write(metadata, arrays), tmp_path / "out")
    config, tensors = config_of(tmp_path / "out"), load_file(tmp_path / "out" / "model.safetensors")
    assert facts["parameters"] == sum(array.size for array in arrays.values())
    assert config["model_type"] == "llama"
    assert config["tie_word_embeddings"] is True
    assert (config["rope_theta"], config["rms_norm_eps"]) == (500.0, 1e-5)
    names = {
        "token_embd": "model.embed_tokens", "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
        "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
    }  # fmt: skip
    for theirs, ours in names.items():
        np.testing.assert_array_equal(tensors[f"{ours}.weight"], arrays[f"{theirs}.weight"])


def test_rows_of_query_and_key_are_put_back_in_halves(write: Write, llama: Llama, tmp_path: Path) -> None:
    metadata, arrays = llama
    import_gguf(write(metadata, arrays), tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for letter, heads in (("q", 4), ("k", 2)):
        stored = arrays[f"blk.0.attn_{letter}.weight"]
        got = tensors[f"model.layers.0.self_attn.{letter}_proj.weight"]
        for head in range(heads):
            for i in range(4):  # half of a head of eight
                np.testing.assert_array_equal(got[head * 8 + i], stored[head * 8 + 2 * i])
                np.testing.assert_array_equal(got[head * 8 + 4 + i], stored[head * 8 + 2 * i + 1])


def test_the_tokenizer_merges_and_ends_as_the_file_says(write: Write, llama: Llama, tmp_path: Path) -> None:
    metadata, arrays = llama
    metadata |= {"tokenizer.chat_template": "{{ messages[0]['content'] }}", "tokenizer.ggml.bos_token_id": 0}
    import_gguf(write(metadata, arrays), tmp_path / "out")
    codec = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert codec.encode("<|im_start|>abcd a<|im_end|>").ids == [10, 7, 9, 11]
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["bos_token"]) == ("<|im_end|>", "<|end|>")
    assert config["chat_template"] == "{{ messages[0]['content'] }}"
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(ends) == [0, 11]


def test_a_text_begins_with_bos_where_the_file_asks_for_it(
    write: Write, llama: Llama, tmp_path: Path
) -> None:
    metadata, arrays = llama
    metadata |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    import_gguf(write(metadata, arrays), tmp_path / "out")
    codec = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert codec.encode("ab").ids == [0, 5]
    assert codec.encode("ab", add_special_tokens=False).ids == [5]


def test_lineage_names_file_digest_and_quantisation(write: Write, llama: Llama, tmp_path: Path) -> None:
    path = write(*llama)
    import_gguf(path, tmp_path / "out")
    manifest = load_manifest(StoreDir(tmp_path / "out"))
    assert manifest is not None
    source = manifest.meta["model"]["source"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (source["file"], source["quantisation"], source["title"]) == ("tiny.gguf", "F32", "Tiny")


def test_half_precision_stays_and_can_be_changed(write: Write, llama: Llama, tmp_path: Path) -> None:
    metadata, arrays = llama
    stored = {
        name: ("F16", array.shape, array.astype("<f2").tobytes()) if array.ndim == 2 else array
        for name, array in arrays.items()
    }
    path = write(metadata, stored)
    import_gguf(path, tmp_path / "half")
    import_gguf(path, tmp_path / "full", dtype="float32")
    half, full = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "full"))
    assert {array.dtype for array in half.values()} == {np.dtype(np.float16)}
    for name, array in full.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array.astype(np.float16), half[name])


def test_a_llama3_scaling_is_recognised_by_its_factors(write: Write, llama: Llama, tmp_path: Path) -> None:
    metadata, arrays = llama
    factors = llama3_factors(500.0, 8, 8.0, 1.0, 4.0, 8192).astype(np.float32)
    assert 1 < factors.size == 4
    scaled = llama3_factors(500000.0, 8, 32.0, 1.0, 4.0, 8192).astype(np.float32)
    metadata |= {"llama.rope.freq_base": 500000.0}
    import_gguf(write(metadata, arrays | {"rope_freqs.weight": scaled}), tmp_path / "out")
    found = config_of(tmp_path / "out")["rope_scaling"]
    assert (found["rope_type"], found["factor"], found["original_max_position_embeddings"]) == (
        "llama3",
        32.0,
        8192,
    )
    with pytest.raises(BadInput, match="known llama3 scalings"):
        import_gguf(write(metadata, arrays | {"rope_freqs.weight": scaled * 1.5}), tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
        ({"general.architecture": "llamas"}, "did you mean 'llama'"),
        ({"llama.attention.clamp_kqv": 8.0}, "'llama.attention.clamp_kqv' is not supported"),
        ({"llama.attention.head_count": "4"}, "'llama.attention.head_count' is missing or not a number"),
        ({"llama.block_count": 3}, "missing model.layers.2"),
        ({"llama.block_count": 1 << 30}, "more than 4096"),
        ({"llama.rope.scaling.type": "su"}, "rotary scaling"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer 'rwkv' is not supported"),
        ({"tokenizer.ggml.pre": "klingon"}, "pre-tokenizer 'klingon' is not known"),
        ({"tokenizer.ggml.merges": ["ab"]}, "is not of two tokens"),
        ({"tokenizer.ggml.merges": ["a q"]}, "not of tokens in the vocabulary"),
        ({"tokenizer.ggml.eos_token_id": 16}, "eos token is 16 of 16"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "3 types"),
        ({"tokenizer.ggml.tokens": ["a"] * 16}, "a token twice"),
        ({"tokenizer.ggml.tokens": [str(n) for n in range(17)]}, "types of tokens"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(
    write: Write, llama: Llama, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    metadata, arrays = llama
    with pytest.raises((BadInput, Damaged), match=sentence):
        import_gguf(write({**metadata, **changes}, arrays), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_tensors_that_do_not_fit_are_refused(write: Write, llama: Llama, tmp_path: Path) -> None:
    metadata, arrays = llama
    extra = {"blk.0.strange.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(BadInput, match=r"'blk\.0\.strange.weight' is not one of architecture 'llama'"):
        import_gguf(write(metadata, arrays | extra), tmp_path / "a")
    with pytest.raises(BadInput, match=r"weights do not fit.*q_proj"):
        import_gguf(
            write(metadata, arrays | {"blk.0.attn_q.weight": np.zeros((32, 16), np.float32)}), tmp_path / "b"
        )
    unknown = {"blk.0.ffn_up.weight": ("IQ4_NL", (64, 32), bytes(64 * 18))}
    with pytest.raises(BadInput, match="IQ4_NL, which is not supported"):
        import_gguf(write(metadata, arrays | unknown), tmp_path / "c")


def test_a_directory_that_exists_is_left_alone(write: Write, llama: Llama, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(InUse):
        import_gguf(write(*llama), tmp_path / "out")
