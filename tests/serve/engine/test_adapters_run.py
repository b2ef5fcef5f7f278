"""An adapter computed beside its model gives what a model gives that it was merged into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.names import NAMINGS
from windlass.serve.engine.adapters import CONFIG, WEIGHTS, load_adapter
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.step import Engine, EngineSettings
from windlass.spec.protocol.wire import Failed, Generate, Tokens
from windlass.spec.shape import DecoderShape

SHAPES = {
    "llama": DecoderShape(vocabulary=97, context=64, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48),
    "gpt2": DecoderShape(family="gpt2", vocabulary=97, context=64, layers=2, width=32, heads=4, ffn_width=48),
}
RANK = 3


def write_adapter(folder: Path, shape: DecoderShape, seed: int) -> Path:
    """Adapt every matrix of every layer."""
    random = np.random.default_rng(seed)
    sizes, tensors = shape.weight_sizes(), {}
    for pair in NAMINGS[shape.family].pairs(shape):
        if pair.ours[0].startswith("layers.") and len(sizes[pair.ours[0]]) == 2:
            rows = sum(sizes[name][0] for name in pair.ours)
            at = f"base_model.model.{pair.theirs.removesuffix('.weight')}"
            columns = sizes[pair.ours[0]][1]
            tensors[f"{at}.lora_A.weight"] = random.standard_normal((RANK, columns)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = random.standard_normal((rows, RANK)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 0.6, "fan_in_fan_out": shape.family == "gpt2"}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def merge(target: Path, shape: DecoderShape, adapter: Path) -> Path:
    model = build(shape, seed=5)
    weights = dict(model.named_parameters())
    loaded = load_adapter(adapter, shape)
    with torch.no_grad():
        for name, (down, up) in loaded.matrices.items():
            weights[name] += loaded.scale * torch.tensor(up) @ torch.tensor(down)
    save_model(model, target)
    return target


def start(
    directory: Path, runner: Any, adapters: dict[str, Path] | None = None, precision: str | None = None
) -> Engine:
    options = LoadOptions(EngineSettings(slots=8), precision, runner=runner, threads=1)
    engine = load_engine(directory, options, adapters)
    assert isinstance(engine, Engine)
    return engine


def answers(engine: Engine, *requests: Generate) -> dict[str, tuple[list[int], list[float]]]:
    """Compute all requests together; return tokens and log-probabilities of each."""
    for request in requests:
        engine.add("me", request)
    said: dict[str, tuple[list[int], list[float]]] = {request.id: ([], []) for request in requests}
    while not engine.is_idle:
        for _, message in engine.step():
            assert isinstance(message, Tokens), message
            said[message.id][0].extend(message.tokens)
            said[message.id][1].extend(message.logprobs)
    return said


def ask(id_: str, adapter: str = "") -> Generate:
    return Generate(id_, [3, 1, 4, 1, 5, 9, 2, 6], 24, temperature=0.0, logprobs=0, adapter=adapter)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("runner", ["native", "torch"])
def test_an_adapter_gives_what_the_merged_model_gives(tmp_path: Path, family: str, runner: str) -> None:
    shape = SHAPES[family]
    save_model(build(shape, seed=5), tmp_path / "base")
    adapter = write_adapter(tmp_path / "poet", shape, seed=1)
    merged = answers(start(merge(tmp_path / "merged", shape, adapter), runner), ask("1"))["1"]
    engine = start(tmp_path / "base", runner, {"poet": adapter})
    adapted = answers(engine, ask("1", "poet"))["1"]
    assert adapted[0] == merged[0]
    assert np.allclose(adapted[1], merged[1], atol=2e-4)
    assert answers(engine, ask("1"))["1"][0] != merged[0]


@pytest.mark.parametrize(("runner", "precision"), [("native", None), ("native", "int8"), ("torch", None)])
def test_requests_with_other_adapters_and_with_none_do_not_touch_each_other(
    tmp_path: Path, runner: str, precision: str | None
) -> None:
    shape = SHAPES["llama"]
    save_model(build(shape, seed=5), tmp_path / "base")
    adapters = {f"a{seed}": write_adapter(tmp_path / f"a{seed}", shape, seed) for seed in (1, 2)}
    engine = start(tmp_path / "base", runner, adapters, precision)
    names = ["", "a1", "a2"]
    alone = {name: answers(engine, ask("1", name))["1"] for name in names}
    assert len({tuple(tokens) for tokens, _ in alone.values()}) == 3
    together = answers(engine, *(ask(f"{name}/{n}", name) for n in range(2) for name in names))
    for id_, answer in together.items():
        wanted = alone[id_.partition("/")[0]]
        assert answer[0] == wanted[0]
        assert np.allclose(answer[1], wanted[1], atol=0 if runner == "native" else 1e-4)


def test_an_adapter_that_the_engine_does_not_have_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    save_model(build(shape, seed=5), tmp_path / "base")
    engine = start(tmp_path / "base", "native", {"poet": write_adapter(tmp_path / "poet", shape, 1)})
    engine.add("me", ask("1", "poat"))
    ((_, failed),) = engine.step()
    assert isinstance(failed, Failed)
    assert failed.code == "unknown_adapter"
    assert "'poet'" in failed.message
