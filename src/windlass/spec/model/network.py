"""What the shapes of all neural families have in common: sizes, the list of their weights, FLOPs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
WeightSizes = dict[str, tuple[int, ...]]
"""The size of each weight by its name; inside a layer, the name without "layers.N.". Rows are outputs."""


class NetworkShape(BaseModel, ABC):
    """Sizes that all neural families have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary: Positive
    context: Positive
    layers: Positive
    width: Positive
    heads: Positive
    ffn_width: Positive

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @abstractmethod
    def embedding_weights(self) -> WeightSizes:
        """Return the weights that turn tokens into the residual stream."""

    @abstractmethod
    def layer_weights(self, layer: int = 0) -> WeightSizes:
        """Return the weights of one layer."""

    @abstractmethod
    def head_weights(self) -> WeightSizes:
        """Return the weights that turn the residual stream into logits.

        A tied output matrix is among them under the embedding's name: a pipeline keeps a copy at both ends.
        """

    def weight_sizes(self) -> WeightSizes:
        """Return the size of every weight that a model of this shape stores; a tied matrix is there once."""
        layers = {
            f"layers.{layer}.{name}": size
            for layer in range(self.layers)
            for name, size in self.layer_weights(layer).items()
        }
        return {**self.embedding_weights(), **self.head_weights(), **layers}

    @property
    def parameters(self) -> int:
        """Number of trained weights; a tied matrix counts once."""
        return _parameters(self)

    @property
    @abstractmethod
    def matrix_parameters(self) -> int:
        """Weights that take part in a matrix product for every token (embedding look-ups do not)."""

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.width

    def forward_flops_per_token(self, length: int | None = None) -> float:
        """Two per weight in a product, plus scores and mixing over `length` keys (all, as bert sees them)."""
        keys = self.context if length is None else length
        return 2.0 * self.matrix_parameters + 4.0 * self.layers * self.attention_width * self.seen_keys(keys)

    def training_flops_per_token(self, length: int | None = None) -> float:
        return 3.0 * self.forward_flops_per_token(length)

    def seen_keys(self, length: int) -> float:
        """Keys that a token attends to on average: half of them under a causal mask."""
        return (length + 1) / 2

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of a layer in products for every token, on average over the layers."""
        return _numbers(size for size in self.layer_weights().values() if len(size) == 2)


def linear_weights(name: str, rows: int, columns: int, *, bias: bool) -> WeightSizes:
    """Return the weights of a linear map."""
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def norm_weights(name: str, width: int, *, bias: bool) -> WeightSizes:
    found: WeightSizes = {f"{name}.weight": (width,)}
    return found | {f"{name}.bias": (width,)} if bias else found


def _numbers(sizes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(size) for size in sizes)


@lru_cache(maxsize=4096)
def _parameters(shape: NetworkShape) -> int:
    """Count weights; the search for sizes asks for the same shapes again and again."""
    return _numbers(shape.weight_sizes().values())
