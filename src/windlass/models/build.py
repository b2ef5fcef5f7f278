"""From a shape to a model with its initial weights.

Input: a Shape (spec). Output: a LanguageModel whose weights are a pure function of the seed and of each
weight's own name, so neither the order of building nor the device changes a bit of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from windlass.models.bert import Bert
from windlass.models.decoder import Decoder
from windlass.models.language import LanguageModel
from windlass.models.mlp import MlpModel
from windlass.spec.shape import BertShape, DecoderShape, MlpShape, Network

DEVIATION = 0.02


def build(
    shape: Network,
    *,
    seed: int | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """Return a model to train. Without a seed one is drawn; on device "meta" there is nothing to set."""
    device = torch.device(device)
    model = outline(shape).to(dtype)
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    model.place_tables(device)
    initialize(model, torch.seed() if seed is None else seed)
    return model


def outline(shape: Network) -> LanguageModel:
    """Return the model without memory for its weights (device "meta"), for weights to be put in."""
    with torch.device("meta"):
        match shape:
            case DecoderShape():
                return Decoder(shape)
            case BertShape():
                return Bert(shape)
            case MlpShape():
                return MlpModel(shape)


@torch.no_grad()
def initialize(model: LanguageModel, seed: int) -> None:
    """Set all weights to their initial values."""
    for name, parameter in model.named_parameters():
        parameter.copy_(first_value(model, name, parameter.shape, seed))


def first_value(model: LanguageModel, name: str, size: Sequence[int], seed: int) -> Tensor:
    """Return the initial value of one weight: matrices are normal, norms one, biases zero.

    The matrices that write into the residual stream are smaller by the root of their number, so that the
    stream's variance does not grow with depth (Radford et al. 2019, section 2.3).
    """
    if len(size) == 1:
        starts_at_zero = name.endswith(("bias", "sinks")) or _has_offset(model)
        return torch.zeros(size) if starts_at_zero else torch.ones(size)
    shrink = (2 * model.shape.layers) ** -0.5 if model.residual and name.endswith(model.residual) else 1.0
    return _normal(size, seed, name) * (DEVIATION * shrink)


def _has_offset(model: LanguageModel) -> bool:
    """Whether norms multiply by one plus their weight."""
    return isinstance(model.shape, DecoderShape) and model.shape.norm_offset


def _normal(size: Sequence[int], seed: int, name: str) -> Tensor:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(tuple(size), generator=generator, dtype=torch.float32)
