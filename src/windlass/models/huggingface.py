"""Models to and from directories of Hugging Face: config.json and safetensors.

Input of `load_model`: a local directory. Output: a LanguageModel with the same numbers in the same types.
Nothing of a directory is executed, and nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from windlass.models.build import outline
from windlass.models.files import CONFIG
from windlass.models.language import LanguageModel
from windlass.models.names import Pair, naming_of
from windlass.models.quantised import Grouped
from windlass.models.tensors import MAX_SHARD_BYTES, LazyTensor, Writer, write_tensors
from windlass.models.weights import ModelWeights, load_weights
from windlass.spec.config import config_from_shape
from windlass.spec.shape import Network
from windlass.store.store_dir import StoreDir


def load_model(
    directory: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> LanguageModel:
    """Load a model; without a `dtype` every tensor keeps that of its file, quantised ones become float32.

    A directory with a manifest is checked against it first, byte by byte.
    """
    weights = load_weights(directory)
    model = outline(weights.shape)
    tensors = {name: _tensor(weights, name).to(device=device, dtype=dtype) for name in weights.names()}
    model.load_state_dict(tensors, strict=True, assign=True)
    model.place_tables(torch.device(device))
    return model


class WeightSource(Protocol):
    """Where the weights of a model come from, one at a time, by our names."""

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of one weight, without its values."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the size of one weight, without its values."""

    def read(self, name: str) -> Tensor:
        """Return one weight."""


def save_model(
    model: LanguageModel,
    target: str | os.PathLike[str] | Writer,
    *,
    special_tokens: Mapping[str, int | list[int] | None] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write config.json and the weights, each tensor in its own type, tied ones once."""
    writer: Writer = StoreDir(target) if isinstance(target, str | os.PathLike) else target
    weights = _InMemory(dict(model.named_parameters()))
    save_weights(model.shape, weights, writer, special_tokens=special_tokens, max_shard_bytes=max_shard_bytes)


def save_weights(
    shape: Network,
    weights: WeightSource,
    writer: Writer,
    *,
    special_tokens: Mapping[str, int | list[int] | None] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the same directory from weights that need not be in memory: one tensor is, at a time."""
    pairs = naming_of(shape).pairs(shape)
    promises = {pair.theirs: _promise(pair, weights) for pair in pairs}
    write_tensors(promises, writer, max_shard_bytes=max_shard_bytes)
    dtype = str(weights.dtype("embedding.weight")).removeprefix("torch.")
    config = config_from_shape(shape, dtype=dtype, special_tokens=special_tokens)
    with writer.writing(CONFIG) as file:
        file.write((json.dumps(config, indent=2) + "\n").encode())


class _InMemory:
    """The weights of a model in memory."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters

    def dtype(self, name: str) -> torch.dtype:
        return self._parameters[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._parameters[name].shape)

    def read(self, name: str) -> Tensor:
        return self._parameters[name].detach()


def _promise(pair: Pair, weights: WeightSource) -> LazyTensor:
    """Return a lazy tensor as Hugging Face stores it: ours joined, transposed for GPT-2."""
    return LazyTensor(weights.dtype(pair.ours[0]), pair.stored_size, lambda: _stored(pair, weights))


def _stored(pair: Pair, weights: WeightSource) -> Tensor:
    if len(pair.ours) == 1 and pair.arrangement == "rows":
        tensor = weights.read(pair.ours[0])
        return tensor.T if pair.transposed else tensor
    # Filled part by part: only one part is in memory besides the whole.
    whole = torch.empty(pair.stored_size, dtype=weights.dtype(pair.ours[0]))
    for which, name in enumerate(pair.ours):
        place = pair.part(whole, which)
        place.copy_(weights.read(name).reshape(place.shape))
    return whole


def _tensor(weights: ModelWeights, name: str) -> Tensor:
    """Return one weight in memory of its own, so that the file may change or go afterwards."""
    weight = weights.get(name)
    if isinstance(weight, Grouped):
        return torch.from_numpy(weight.widened())
    if weight.values.dtype == np.uint16:  # bits of bfloat16, which torch takes from signed numbers only
        return torch.from_numpy(weight.values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(weight.values.copy())
