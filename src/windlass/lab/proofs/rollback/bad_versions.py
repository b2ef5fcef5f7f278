"""Bad versions for the roll-back proof: each is a good model with one defect, as a complete directory.

The slow version answers exactly as the good one: it has extra layers whose output is zero, so only the time
differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from windlass.store.manifest import DirectoryWriter, load_manifest
from windlass.store.store_dir import StoreDir

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
SLOW_LAYERS = 80
SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""The output matrices of a layer; zeros there make a layer that changes nothing."""

Files = dict[str, bytes]
Tensors = dict[str, NDArray[np.generic]]


def spoil(kind: str, good: Path, target: Path) -> Path:
    """Write a copy of a model directory with one defect."""
    manifest = load_manifest(StoreDir(good))
    assert manifest is not None
    files = SPOILERS[kind]({name: (good / name).read_bytes() for name in manifest.files})
    writer = DirectoryWriter(StoreDir(target))
    for name, data in files.items():
        writer.write(name, data)
    writer.commit({key: manifest.meta[key] for key in manifest.meta if key not in ("name", "version")})
    return target


def _nan(files: Files) -> Files:
    """One matrix contains a NaN, as after a diverged training run."""
    tensors = load(files[WEIGHTS])
    name = next(name for name in tensors if name.endswith(SILENT[1]))
    spoilt = tensors[name].copy()
    spoilt[...] = np.nan
    return {**files, WEIGHTS: save({**tensors, name: spoilt})}


def _shuffled(files: Files) -> Files:
    """All weights are present, at other positions."""
    draw = np.random.default_rng(7)
    tensors = {
        name: draw.permutation(tensor.reshape(-1)).reshape(tensor.shape)
        for name, tensor in sorted(load(files[WEIGHTS]).items())
    }
    return {**files, WEIGHTS: save(tensors)}


def _slow(files: Files) -> Files:
    tensors, config = load(files[WEIGHTS]), json.loads(files[CONFIG])
    count = int(config["num_hidden_layers"])
    first = {name: tensor for name, tensor in tensors.items() if ".layers.0." in name}
    for number in range(count, count + SLOW_LAYERS):
        for name, tensor in first.items():
            more = np.zeros_like(tensor) if name.endswith(SILENT) else tensor
            tensors[name.replace(".layers.0.", f".layers.{number}.")] = more
    config["num_hidden_layers"] = count + SLOW_LAYERS
    return {**files, WEIGHTS: save(tensors), CONFIG: json.dumps(config).encode()}


def _crashing(files: Files) -> Files:
    """The weights are truncated; the manifest matches them, so only loading detects it."""
    return {**files, WEIGHTS: files[WEIGHTS][: len(files[WEIGHTS]) // 2]}


def _mistokenised(files: Files) -> Files:
    """The tokenizer belongs to another model: the same tokens with other ids."""
    tokenizer = json.loads(files[TOKENIZER])
    fixed = {added["content"] for added in tokenizer.get("added_tokens", [])}
    words = [word for word in tokenizer["model"]["vocab"] if word not in fixed]
    numbers = [tokenizer["model"]["vocab"][word] for word in words]
    moved = np.random.default_rng(7).permutation(numbers).tolist()
    tokenizer["model"]["vocab"] |= dict(zip(words, moved, strict=True))
    return {**files, TOKENIZER: json.dumps(tokenizer, ensure_ascii=False).encode()}


SPOILERS: dict[str, Callable[[Files], Files]] = {
    "nan": _nan,
    "shuffled": _shuffled,
    "slow": _slow,
    "crashing": _crashing,
    "mistokenised": _mistokenised,
}
