"""Models to and from directories of Hugging Face: config.json and safetensors.

Input of `load_model`: a local directory. Output: a LanguageModel with the same numbers in the same types.
Nothing of a directory is executed, and nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from windlass.models.build import outline
from windlass.models.files import CONFIG, check_manifest, listed, read_config
from windlass.models.language import LanguageModel
from windlass.models.names import NAMINGS, Naming, Pair
from windlass.models.tensors import MOST_SHARD_BYTES, Promise, TensorFiles, Writer, write_tensors
from windlass.spec.config import config_from_shape, shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.shape import Shape
from windlass.store.place import Place


def load_model(
    directory: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> LanguageModel:
    """Load a model; without a `dtype` every tensor keeps that of its file.

    A directory with a manifest is checked against it first, byte by byte.
    """
    folder = Path(directory)
    shape = shape_from_config(read_config(folder), str(folder / CONFIG))
    check_manifest(folder)
    model = outline(shape)
    with TensorFiles(folder) as files:
        weights = _read_weights(files, model, dtype, torch.device(device))
    model.load_state_dict(weights, strict=True, assign=True)
    model.place_tables(torch.device(device))
    return model


class Weights(Protocol):
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
    most_shard_bytes: int = MOST_SHARD_BYTES,
) -> None:
    """Write config.json and the weights, each tensor in its own type, tied ones once."""
    writer: Writer = Place(target) if isinstance(target, str | os.PathLike) else target
    weights = _InMemory(dict(model.named_parameters()))
    save_weights(
        model.shape, weights, writer, special_tokens=special_tokens, most_shard_bytes=most_shard_bytes
    )


def save_weights(
    shape: Shape,
    weights: Weights,
    writer: Writer,
    *,
    special_tokens: Mapping[str, int | list[int] | None] | None = None,
    most_shard_bytes: int = MOST_SHARD_BYTES,
) -> None:
    """Write the same directory from weights that need not be in memory: one of theirs is, at a time."""
    pairs = NAMINGS[shape.family].pairs(shape)
    promises = {pair.theirs: _promise(pair, weights) for pair in pairs}
    write_tensors(promises, writer, most_shard_bytes=most_shard_bytes)
    dtype = str(weights.dtype("embedding.weight")).removeprefix("torch.")
    config = config_from_shape(shape, dtype=dtype, special_tokens=special_tokens)
    with writer.writing(CONFIG) as file:
        file.write((json.dumps(config, indent=2) + "\n").encode())


class _InMemory:
    """The weights of a model that is there."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters

    def dtype(self, name: str) -> torch.dtype:
        return self._parameters[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._parameters[name].shape)

    def read(self, name: str) -> Tensor:
        return self._parameters[name].detach()


def _promise(pair: Pair, weights: Weights) -> Promise:
    """Promise a tensor as Hugging Face stores it: ours one after the other, turned round for GPT-2."""
    first = pair.ours[0]
    size = _stored_shape(weights.shape(first), pair)
    return Promise(weights.dtype(first), tuple(size), lambda: _stored(pair, size, weights))


def _stored(pair: Pair, size: Sequence[int], weights: Weights) -> Tensor:
    if len(pair.ours) == 1:
        tensor = weights.read(pair.ours[0])
        return tensor.T if pair.transposed else tensor
    # Filled part by part: beside the whole there is only one of its parts.
    whole = torch.empty(size, dtype=weights.dtype(pair.ours[0]))
    places = (whole.T if pair.transposed else whole).chunk(len(pair.ours))
    for name, place in zip(pair.ours, places, strict=True):
        place.copy_(weights.read(name))
    return whole


def _read_weights(
    files: TensorFiles, model: LanguageModel, dtype: torch.dtype | None, device: torch.device
) -> dict[str, Tensor]:
    """Read every tensor of the model, after names and sizes were found to fit."""
    naming = NAMINGS[model.shape.family]
    stored = {naming.present(name): name for name in files.names()}
    pairs = list(naming.pairs(model.shape))
    _check_fit(files, model, pairs, stored, naming)
    weights: dict[str, Tensor] = {}
    for pair in pairs:
        tensor = files.read(stored[pair.theirs])
        tensor = tensor.T.contiguous() if pair.transposed else tensor
        # Parts of one tensor get memory of their own, or each would keep the whole alive.
        parts = [tensor] if len(pair.ours) == 1 else [t.clone() for t in tensor.chunk(len(pair.ours))]
        weights |= dict(zip(pair.ours, parts, strict=True))
    own = {pair.theirs for pair in pairs}
    copies = {theirs: ours for theirs, ours in naming.copies.items() if theirs not in own}
    _check_copies(files, weights, copies, stored)
    return {name: tensor.to(device=device, dtype=dtype) for name, tensor in weights.items()}


def _check_fit(
    files: TensorFiles, model: LanguageModel, pairs: list[Pair], stored: Mapping[str, str], naming: Naming
) -> None:
    wanted = {pair.theirs: _stored_shape(model.get_parameter(pair.ours[0]).shape, pair) for pair in pairs}
    missing = [name for name in wanted if name not in stored]
    extra = [
        name for name in stored
        if name not in wanted and name not in naming.copies and not naming.harmless.fullmatch(name)
    ]  # fmt: skip
    if missing or extra:
        told = [f"missing {listed(missing)}"] if missing else []
        told += [f"unexpected {listed(extra)}"] if extra else []
        raise BadInput(f"{files.directory}: weights do not fit {CONFIG}: {'; '.join(told)}")
    misfits = [
        f"{name} is {files.shape(stored[name])}, not {shape}"
        for name, shape in wanted.items()
        if files.shape(stored[name]) != shape
    ]
    if misfits:
        raise BadInput(f"{files.directory}: weights do not fit {CONFIG}: {listed(misfits)}")


def _check_copies(
    files: TensorFiles, weights: Mapping[str, Tensor], copies: Mapping[str, str], stored: Mapping[str, str]
) -> None:
    """A tied matrix that a file stores twice must be the same twice; our models hold it once."""
    for theirs, ours in copies.items():
        own = weights[ours]
        if theirs in stored and not torch.equal(files.read(stored[theirs]).to(own.dtype), own):
            raise BadInput(
                f"{files.directory}: '{theirs}' differs from the matrix that {CONFIG} ties it to",
                hint='a llama model with two matrices says "tie_word_embeddings": false',
            )


def _stored_shape(first: Sequence[int], pair: Pair) -> list[int]:
    """Return the size of theirs, given that of the first of ours in it."""
    size = [first[0] * len(pair.ours), *first[1:]]
    return size[::-1] if pair.transposed else size
