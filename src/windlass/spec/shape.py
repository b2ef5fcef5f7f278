"""The sizes of a model, and what follows from them without building it: weights and FLOPs.

Counts are exact: tests build every family and compare. FLOPs count a multiply-add as two and leave out
what is not a matrix product (norms, softmax, rotary angles): under 2% of a step at any useful size.
Training costs three times the forward pass, because the backward pass multiplies twice: once for the
gradient of the inputs, once for that of the weights (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from windlass.spec.model.decoder import DECODERS, DecoderShape, RopeScaling
from windlass.spec.model.network import NetworkShape, Positive, WeightSizes, linear_weights, norm_weights

__all__ = [
    "FAMILIES",
    "BertShape",
    "DecoderShape",
    "HmmShape",
    "MlpShape",
    "Network",
    "NgramShape",
    "RopeScaling",
    "Shape",
    "Statistic",
]

FAMILIES = (*DECODERS, "bert")
"""The transformers, which every layout can divide."""


class BertShape(NetworkShape):
    """BERT: an encoder that sees both sides, with or without the head that predicts masked tokens."""

    family: Literal["bert"] = "bert"
    token_types: Positive = 2
    norm_epsilon: float = 1e-12
    masked_head: bool = True
    """Whether it has the head that predicts masked tokens; encoders for embeddings have none."""

    @model_validator(mode="after")
    def _divides(self) -> BertShape:
        return _width_divides(self)

    @property
    def matrix_parameters(self) -> int:
        head = self.width**2 + self.vocabulary * self.width if self.masked_head else 0
        return self.layers * self.layer_matrix_parameters + head

    def embedding_weights(self) -> WeightSizes:
        found: WeightSizes = {
            "embedding.weight": (self.vocabulary, self.width),
            "positions.weight": (self.context, self.width),
            "token_types.weight": (self.token_types, self.width),
        }
        return found | norm_weights("embedding_norm", self.width, bias=True)

    def layer_weights(self, layer: int = 0) -> WeightSizes:
        found: WeightSizes = {}
        for name in ("query", "key", "value", "output"):
            found |= linear_weights(f"attention.{name}", self.width, self.width, bias=True)
        found |= linear_weights("ffn.up", self.ffn_width, self.width, bias=True)
        found |= linear_weights("ffn.down", self.width, self.ffn_width, bias=True)
        norms = norm_weights("attention_norm", self.width, bias=True)
        return found | norms | norm_weights("ffn_norm", self.width, bias=True)

    def head_weights(self) -> WeightSizes:
        found: WeightSizes = {"embedding.weight": (self.vocabulary, self.width)}
        if not self.masked_head:
            return found
        found |= linear_weights("head.dense", self.width, self.width, bias=True)
        return found | norm_weights("head.norm", self.width, bias=True) | {"head.bias": (self.vocabulary,)}

    def seen_keys(self, length: int) -> float:
        return float(length)


class MlpShape(NetworkShape):
    """A feed-forward model of the last `window` tokens (Bengio et al. 2003), with a tied head.

    The vectors of the window go through one matrix into the residual stream, in which `layers` blocks follow.
    """

    family: Literal["mlp"] = "mlp"
    window: Positive
    heads: Literal[1] = 1
    norm_epsilon: float = 1e-5

    @property
    def matrix_parameters(self) -> int:
        mix = self.window * self.width**2
        return mix + self.layers * self.layer_matrix_parameters + self.vocabulary * self.width

    def embedding_weights(self) -> WeightSizes:
        mix = {"mix.weight": (self.width, self.window * self.width)}
        return {"embedding.weight": (self.vocabulary, self.width), **mix}

    def layer_weights(self, layer: int = 0) -> WeightSizes:
        found = linear_weights("ffn.up", self.ffn_width, self.width, bias=False)
        found |= linear_weights("ffn.down", self.width, self.ffn_width, bias=False)
        return found | norm_weights("ffn_norm", self.width, bias=False)

    def head_weights(self) -> WeightSizes:
        return {"embedding.weight": (self.vocabulary, self.width), "norm.weight": (self.width,)}

    def seen_keys(self, length: int) -> float:
        """There is no attention."""
        return 0.0


class NgramShape(BaseModel):
    """Counts of sequences of up to `order` tokens, smoothed by modified Kneser-Ney."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["ngram"] = "ngram"
    vocabulary: Positive
    context: Positive
    order: Annotated[int, Field(ge=1, le=7)]
    ngrams: tuple[int, ...] = ()
    """The number of n-grams of each order; empty until they are counted."""

    @property
    def parameters(self) -> int:
        return sum(self.ngrams)

    @property
    def width(self) -> int:
        """It has no vectors."""
        return 0


class HmmShape(BaseModel):
    """A hidden Markov model: states that follow each other, and tokens that they emit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["hmm"] = "hmm"
    vocabulary: Positive
    context: Positive
    states: Positive

    @property
    def parameters(self) -> int:
        return self.states * (1 + self.states + self.vocabulary)

    @property
    def width(self) -> int:
        """Its vector of a text is the probability of each state."""
        return self.states


S = TypeVar("S", bound=NetworkShape)

Network = Annotated[DecoderShape | BertShape | MlpShape, Field(discriminator="family")]
"""Families that are trained by gradients."""

Statistic = Annotated[NgramShape | HmmShape, Field(discriminator="family")]
"""Families that are trained by counting, really or in expectation."""

Shape = Annotated[DecoderShape | BertShape | MlpShape | NgramShape | HmmShape, Field(discriminator="family")]


def _width_divides(shape: S) -> S:
    if shape.width % shape.heads:
        raise ValueError(f"width {shape.width} is not a multiple of heads {shape.heads}")
    return shape
