"""Our models beside those of transformers itself: scores after import and export, bits after a round trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from windlass.models.build import build
from windlass.models.huggingface import load_model, save_model
from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.spec.shape import BertShape, DecoderShape, Network, RopeScaling
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
LLAMA = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64,
        "bos_token_id": 3, "eos_token_id": 3}  # fmt: skip
BERT = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 64,
}  # fmt: skip
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA),
    "llama grouped": ("Llama", LLAMA | {"num_key_value_heads": 2}),
    "llama one kv head": ("Llama", LLAMA | {"num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "llama tied": ("Llama", LLAMA | {"tie_word_embeddings": True}),
    "llama theta": ("Llama", LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}),
    "llama stretched": ("Llama", LLAMA | {"rope_parameters": LLAMA3, "num_key_value_heads": 3}),
    "llama wide heads": ("Llama", LLAMA | {"head_dim": 14, "num_key_value_heads": 2}),
    "llama odd sizes": ("Llama", LLAMA | {"vocab_size": 53, "intermediate_size": 37, "num_hidden_layers": 1}),
    "gpt2": ("GPT2", GPT2),
    "gpt2 odd sizes": ("GPT2", GPT2 | {"vocab_size": 53, "n_inner": 37, "n_layer": 1, "n_head": 3}),
    "gpt2 one head": ("GPT2", GPT2 | {"n_head": 1, "layer_norm_epsilon": 1e-3}),
    "bert": ("BERT", BERT),
    "bert three types": ("BERT", BERT | {"type_vocab_size": 3, "layer_norm_eps": 1e-6}),
    "bert odd sizes": ("BERT", BERT | {"vocab_size": 53, "intermediate_size": 37, "num_hidden_layers": 1}),
}
OURS = {
    "llama": DecoderShape(vocabulary=97, context=64, layers=2, width=48, heads=6, kv_heads=2, ffn_width=88),
    "llama tied": DecoderShape(
        vocabulary=97, context=64, layers=2, width=48, heads=4, kv_heads=4, ffn_width=50, tied=True,
        rope_theta=5e5, rope_scaling=RopeScaling(original_context=16, factor=4.0),
    ),
    "llama wide heads": DecoderShape(
        vocabulary=97, context=64, layers=2, width=48, heads=4, kv_heads=2, ffn_width=50,
        explicit_head_width=20,
    ),
    "gpt2": DecoderShape(family="gpt2", vocabulary=97, context=64, layers=2, width=48, heads=6, ffn_width=88),
    "bert": BertShape(
        vocabulary=97, context=64, layers=2, width=48, heads=6, ffn_width=88, norm_epsilon=1e-6
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", THEIRS)
def test_an_imported_model_gives_the_scores_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = published(kind, tmp_path)
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 40))
    with torch.no_grad():
        model = load_model(tmp_path)
        scores = model.logits(model(tokens))
        torch.testing.assert_close(scores, theirs(tokens).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", OURS)
def test_an_exported_model_gives_our_scores_in_transformers(kind: str, tmp_path: Path) -> None:
    model = shaken(OURS[kind])
    save_model(model, tmp_path, special_tokens={"eos_token_id": 5})
    auto = "AutoModelForMaskedLM" if OURS[kind].family == "bert" else "AutoModelForCausalLM"
    theirs = getattr(transformers, auto).from_pretrained(tmp_path).eval()
    tokens = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model.logits(model(tokens)), atol=1e-4, rtol=0)
    assert (theirs.config.eos_token_id, theirs.config.bos_token_id) == (5, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", THEIRS)
def test_a_round_trip_keeps_every_bit(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = published(kind, tmp_path / "theirs", dtype=dtype)
    save_model(load_model(tmp_path / "theirs"), tmp_path / "ours")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(tmp_path / "ours" / "model.safetensors")
    assert_same(before, after)
    again = type(theirs).from_pretrained(tmp_path / "ours")
    assert_same(dict(theirs.state_dict()), dict(again.state_dict()))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_a_round_trip_through_shards_keeps_every_bit(kind: str, tmp_path: Path) -> None:
    theirs = published(kind, tmp_path / "theirs", max_shard_size="30KB")
    save_model(load_model(tmp_path / "theirs"), tmp_path / "ours", max_shard_bytes=30_000)
    for folder in ("theirs", "ours"):
        assert len(list((tmp_path / folder).glob("model-*-of-*.safetensors"))) > 2
    assert_same(shards(tmp_path / "theirs"), shards(tmp_path / "ours"))
    again = type(theirs).from_pretrained(tmp_path / "ours")
    assert_same(dict(theirs.state_dict()), dict(again.state_dict()))


def test_bert_pads_as_transformers_does(tmp_path: Path) -> None:
    theirs = published("bert", tmp_path)
    model = load_model(tmp_path)
    tokens = torch.randint(0, 97, (2, 20))
    mask = torch.ones_like(tokens)
    mask[0, 11:] = 0
    types = torch.randint(0, 2, (2, 20))
    with torch.no_grad():
        wanted = theirs(tokens, attention_mask=mask, token_type_ids=types).logits
        x_BTD = model.embed(tokens, None, types)
        x_BTD = model.through(x_BTD, tokens.shape[1], key_mask_BT=mask.bool())
        scores = model.logits(model.finish(x_BTD))
    torch.testing.assert_close(scores[mask.bool()], wanted[mask.bool()], atol=1e-4, rtol=0)


def test_a_type_is_changed_only_when_requested(tmp_path: Path) -> None:
    published("llama", tmp_path, dtype=torch.bfloat16)
    assert load_model(tmp_path).output_weight.dtype == torch.bfloat16
    assert load_model(tmp_path, dtype=torch.float32).output_weight.dtype == torch.float32


def test_the_stretched_rotary_table_stays_float32_precise_in_a_bfloat16_file(tmp_path: Path) -> None:
    published("llama stretched", tmp_path, dtype=torch.bfloat16)
    assert load_model(tmp_path).get_buffer("rotary_cos_TR").dtype == torch.float32


@pytest.mark.parametrize(("kind", "prefix"), [("gpt2", "transformer."), ("bert", "bert.")])
def test_files_of_the_bare_body_need_no_prefix(kind: str, prefix: str, tmp_path: Path) -> None:
    published(kind, tmp_path)
    before = load_model(tmp_path)
    rewrite(tmp_path, lambda tensors: {name.removeprefix(prefix): t for name, t in tensors.items()})
    assert_same(before.state_dict(), load_model(tmp_path).state_dict())


def test_an_encoder_without_a_head_is_that_of_transformers_and_comes_back(tmp_path: Path) -> None:
    from transformers import AutoModel, BertConfig, BertModel

    config = BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40,
    )  # fmt: skip
    theirs = BertModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    tokens = torch.randint(0, 90, (2, 17))
    with torch.no_grad():
        wanted = theirs(tokens).last_hidden_state
        torch.testing.assert_close(ours(tokens), wanted, atol=1e-5, rtol=0)
        save_model(ours, tmp_path / "ours")
        again = AutoModel.from_pretrained(tmp_path / "ours", local_files_only=True).eval()
        torch.testing.assert_close(again(tokens).last_hidden_state, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "h.0.attn.masked_bias"),
        ("bert", "cls.seq_relationship.weight"),
        ("bert", "bert.pooler.dense.weight"),
        ("bert", "bert.embeddings.position_ids"),
    ],
)
def test_harmless_extra_tensors_are_passed_over(kind: str, extra: str, tmp_path: Path) -> None:
    published(kind, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {extra: torch.zeros(3)})
    load_model(tmp_path)


def test_the_first_published_names_of_bert_norms_are_known(tmp_path: Path) -> None:
    published("bert", tmp_path)
    before = load_model(tmp_path)

    def as_published(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    rewrite(tmp_path, lambda tensors: {as_published(name): t for name, t in tensors.items()})
    assert_same(before.state_dict(), load_model(tmp_path).state_dict())


def test_a_tied_matrix_stored_twice_must_be_the_same_twice(tmp_path: Path) -> None:
    published("gpt2", tmp_path)
    twice = load_file(tmp_path / "model.safetensors")["transformer.wte.weight"]
    rewrite(tmp_path, lambda tensors: tensors | {"lm_head.weight": twice.clone()})
    load_model(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"lm_head.weight": twice + 1})
    with pytest.raises(BadInput, match=r"'lm_head.weight' differs from the matrix"):
        load_model(tmp_path)


def test_missing_and_unexpected_tensors_are_listed(tmp_path: Path) -> None:
    published("llama", tmp_path)
    rewrite(
        tmp_path,
        lambda tensors: (
            {n: t for n, t in tensors.items() if "layers.1.mlp" not in n} | {"odd": torch.ones(1)}
        ),
    )
    with pytest.raises(
        BadInput, match=r"missing model.layers.1.mlp.gate_proj.weight, .*; unexpected model.odd"
    ):
        load_model(tmp_path)


def test_a_tensor_of_the_wrong_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    published("gpt2", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"transformer.wpe.weight": torch.zeros(9, 48)})
    with pytest.raises(BadInput, match=r"transformer.wpe.weight is \[9, 48\], not \[64, 48\]"):
        load_model(tmp_path)


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    published("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"model.norm.weight": torch.ones(48, dtype=torch.int8)})
    with pytest.raises(BadInput, match=r"'model.norm.weight' is of type I8"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickle_weights_are_refused_and_never_opened(name: str, tmp_path: Path) -> None:
    published("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(BadInput, match=rf"as pickle \({name}\)") as caught:
        load_model(tmp_path)
    assert "save_pretrained" in str(caught.value)


@pytest.mark.parametrize("kept", [0, 7, 100, 2000, -1])
def test_a_truncated_file_is_called_damaged(kept: int, tmp_path: Path) -> None:
    published("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Damaged, match=r"model\.safetensors: not a whole safetensors file"):
        load_model(tmp_path)


def test_a_flipped_bit_is_found_by_the_manifest(tmp_path: Path) -> None:
    writer = DirectoryWriter(StoreDir(tmp_path))
    save_model(shaken(OURS["gpt2"]), writer)
    writer.commit()
    load_model(tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="differ from those written"):
        load_model(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    published("bert", tmp_path, max_shard_size="30KB")
    next(iter(sorted(tmp_path.glob("model-00002*")))).unlink()
    with pytest.raises(Damaged, match=r"model-00002.*listed in model.safetensors.index.json but missing"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "weights.bin", 7])
def test_an_index_may_not_point_outside_of_its_directory(name: object, tmp_path: Path) -> None:
    published("bert", tmp_path)
    index = {"weight_map": {"bert.embeddings.word_embeddings.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="names the file"):
        load_model(tmp_path)


def test_what_is_no_model_directory_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such directory"):
        load_model(tmp_path / "absent")
    with pytest.raises(NotFound, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        load_model(tmp_path)
    published("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"no model\.safetensors"):
        load_model(tmp_path)


def published(kind: str, folder: Path, dtype: torch.dtype = torch.float32, **saving: Any) -> Any:
    """Save a randomly initialised model of transformers whose biases and norms are random as well."""
    family, sizes = THEIRS[kind]
    config, model = {
        "Llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "GPT2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "BERT": (transformers.BertConfig, transformers.BertForMaskedLM),
    }[family]
    theirs = shake(model(config(**sizes))).to(dtype).eval()
    theirs.save_pretrained(folder, **saving)
    return theirs


def shaken(shape: Network) -> Any:
    return shake(build(shape, seed=4))


@torch.no_grad()
def shake(model: Any) -> Any:
    """Move every weight off its initial value, so that a swapped norm or bias shows."""
    generator = torch.Generator().manual_seed(9)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in change(load_file(path)).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def shards(folder: Path) -> dict[str, torch.Tensor]:
    return {n: t for path in folder.glob("model-*.safetensors") for n, t in load_file(path).items()}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert sorted(one) == sorted(two)
    for name in one:
        assert one[name].dtype == two[name].dtype, name
        assert torch.equal(one[name], two[name]), name
