"""Versions that were spoilt on purpose: each is wrong in its own way, and in no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models

from windlass.lab.proofs.rollback.bad_versions import SLOW_LAYERS, SPOILERS, spoil
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.step import Engine, EngineSettings
from windlass.spec.protocol.wire import Generate, Tokens
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.store_dir import StoreDir

SHAPE = DecoderShape(vocabulary=64, context=64, layers=2, width=32, heads=4, kv_heads=4, ffn_width=48)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "model"
    save_model(build(SHAPE, seed=3), folder)
    vocabulary = {chr(33 + number): number for number in range(64)}
    data = Tokenizer(models.WordLevel(vocabulary, unk_token="!")).to_str().encode()
    (folder / "tokenizer.json").write_bytes(data)
    writer = DirectoryWriter(StoreDir(folder))
    for file in sorted(folder.iterdir()):
        if file.name != "manifest.json":
            writer.write(file.name, file.read_bytes())
    writer.commit({"kind": "model", "name": "good"})
    return folder


@pytest.mark.parametrize("kind", SPOILERS)
def test_a_spoilt_version_is_a_whole_directory(kind: str, good: Path, tmp_path: Path) -> None:
    target = spoil(kind, good, tmp_path / kind)
    assert set(verify(StoreDir(target)).files) == set(verify(StoreDir(good)).files)


def test_a_slow_version_answers_as_the_good_one_does(good: Path, tmp_path: Path) -> None:
    slow = spoil("slow", good, tmp_path / "slow")
    assert json.loads((slow / "config.json").read_text())["num_hidden_layers"] == 2 + SLOW_LAYERS
    assert answer(slow) == answer(good)


def test_shuffled_weights_are_the_same_numbers_elsewhere(good: Path, tmp_path: Path) -> None:
    before = load_file(good / "model.safetensors")
    after = load_file(spoil("shuffled", good, tmp_path / "shuffled") / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    assert np.array_equal(np.sort(before[name], axis=None), np.sort(after[name], axis=None))
    assert not np.array_equal(before[name], after[name])


def test_a_foreign_tokenizer_gives_other_numbers_for_the_same_words(good: Path, tmp_path: Path) -> None:
    folders = (good, spoil("mistokenised", good, tmp_path / "mistokenised"))
    one, other = (json.loads((f / "tokenizer.json").read_text())["model"]["vocab"] for f in folders)
    assert one != other
    assert sorted(one.values()) == sorted(other.values())


def answer(folder: Path) -> list[int]:
    engine = load_engine(folder, LoadOptions(EngineSettings(slots=1, drafts=False), threads=1))
    assert isinstance(engine, Engine)
    engine.add(0, Generate("a", [1, 2, 3], 8, temperature=0.0))
    told: list[int] = []
    while not engine.is_idle:
        told += [t for _, m in engine.step() if isinstance(m, Tokens) for t in m.tokens]
    return told
