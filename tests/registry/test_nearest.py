"""Words found in a vocabulary, and their neighbours in a model on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from windlass.corpus.tokenizer import load_tokenizer
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.registry.nearest import find_near, token_of
from windlass.spec.errors import BadInput
from windlass.spec.shape import MlpShape

WORDS = ["<|end|>", "k", "i", "n", "g", "Ġ", "ki", "ng", "king", "Ġking", "Ġqueen", "q"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    save_model(
        build(MlpShape(vocabulary=12, context=8, layers=1, width=4, ffn_width=4, window=2), seed=1), folder
    )
    file = folder / "model.safetensors"
    tensors = dict(load_file(file))
    tensors["embedding.weight"] = np.eye(12, 4, dtype=np.float32)
    tensors["embedding.weight"][9:11] = [[1, 2, 3, 4], [1, 2, 3, 5]]
    save_file(tensors, file)
    merges = [("k", "i"), ("n", "g"), ("ki", "ng"), ("Ġ", "king")]
    inner = Inner(models.BPE(vocab={w: i for i, w in enumerate(WORDS)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    inner.save(str(folder / "tokenizer.json"))
    return folder


def test_a_word_is_meant_as_it_stands_after_a_space(model: Path) -> None:
    tokenizer = load_tokenizer(model / "tokenizer.json")
    assert WORDS[token_of(tokenizer, "king")] == "Ġking"
    assert WORDS[token_of(tokenizer, "ki")] == "ki"
    assert WORDS[token_of(tokenizer, "Ġqueen")] == "Ġqueen"


def test_a_word_of_several_tokens_is_refused_with_its_tokens(model: Path) -> None:
    tokenizer = load_tokenizer(model / "tokenizer.json")
    with pytest.raises(BadInput, match="'gk' is 2 tokens") as refusal:
        token_of(tokenizer, "gk")
    assert refusal.value.hint == "they are 'g', 'k'"


@pytest.mark.slow
def test_neighbours_come_from_a_process_of_their_own(model: Path, tmp_path: Path) -> None:
    found = find_near(model, "king", count=2, by_id=False, logs=tmp_path)
    assert found["token"] == {"text": " king", "id": 9}
    assert found["near"][0]["text"] == " queen"
    assert found["near"][0]["cosine"] == pytest.approx(0.994, abs=1e-3)
    assert find_near(model, "10", count=1, by_id=True, logs=tmp_path)["near"][0]["id"] == 9
    with pytest.raises(BadInput, match="there is no token 12; they are 0 to 11"):
        find_near(model, "12", count=1, by_id=True, logs=tmp_path)
