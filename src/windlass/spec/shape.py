"""The sizes of a model, and what follows from them without building it: weights and FLOPs.

Counts are exact: tests build every family and compare. FLOPs count a multiply-add as two and leave out
what is not a matrix product (norms, softmax, rotary angles): under 2% of a step at any useful size.
Training costs three times the forward pass, because the backward pass multiplies twice: once for the
gradient of the inputs, once for that of the weights (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]

FAMILIES = ("llama", "gpt2", "bert")
"""The transformers, which every layout can divide."""


class RopeScaling(BaseModel):
    """Stretches rotary wave lengths as Llama 3.1 does, to reach contexts beyond the trained one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = Field(8.0, ge=1, description="how much longer the context becomes")
    low_freq_factor: float = Field(
        1.0, gt=0, description="waves longer than original/this are stretched fully"
    )
    high_freq_factor: float = Field(4.0, gt=0, description="waves shorter than original/this are left alone")
    original_context: Positive = Field(8192, description="context of the model before stretching")

    @model_validator(mode="after")
    def _ordered(self) -> RopeScaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be greater than low_freq_factor")
        return self


class _Shape(BaseModel, ABC):
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

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Number of trained weights; a tied matrix counts once."""

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


class LlamaShape(_Shape):
    """Llama 1 to 3 and its likes: RMSNorm, rotary positions, grouped queries, SwiGLU."""

    family: Literal["llama"] = "llama"
    kv_heads: Positive
    explicit_head_width: Positive | None = None
    tied: bool = False
    norm_epsilon: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None

    @model_validator(mode="after")
    def _divides(self) -> LlamaShape:
        if self.explicit_head_width is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_width % 2:
            raise ValueError(f"head width {self.head_width} is odd; rotary positions turn pairs")
        return self

    @property
    def head_width(self) -> int:
        return self.explicit_head_width or self.width // self.heads

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    @property
    def layer_matrix_parameters(self) -> int:
        attention = self.width * self.head_width * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.ffn_width

    @property
    def matrix_parameters(self) -> int:
        return self.layers * self.layer_matrix_parameters + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        embedding = self.vocabulary * self.width
        norms = (2 * self.layers + 1) * self.width
        return self.matrix_parameters + norms + (0 if self.tied else embedding)


class Gpt2Shape(_Shape):
    """GPT-2: LayerNorm, learned positions, GELU, biases everywhere, tied head."""

    family: Literal["gpt2"] = "gpt2"
    norm_epsilon: float = 1e-5

    @model_validator(mode="after")
    def _divides(self) -> Gpt2Shape:
        return _width_divides(self)

    @property
    def layer_matrix_parameters(self) -> int:
        return 4 * self.width**2 + 2 * self.width * self.ffn_width

    @property
    def matrix_parameters(self) -> int:
        return self.layers * self.layer_matrix_parameters + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        biases = self.layers * (3 * self.width + self.width + self.ffn_width + self.width)
        norms = (2 * self.layers + 1) * 2 * self.width
        return self.matrix_parameters + biases + norms + self.context * self.width


class BertShape(_Shape):
    """BERT: an encoder that sees both sides, with the head that predicts masked tokens."""

    family: Literal["bert"] = "bert"
    token_types: Positive = 2
    norm_epsilon: float = 1e-12

    @model_validator(mode="after")
    def _divides(self) -> BertShape:
        return _width_divides(self)

    @property
    def layer_matrix_parameters(self) -> int:
        return 4 * self.width**2 + 2 * self.width * self.ffn_width

    @property
    def matrix_parameters(self) -> int:
        head = self.width**2 + self.vocabulary * self.width
        return self.layers * self.layer_matrix_parameters + head

    @property
    def parameters(self) -> int:
        embeddings = (self.context + self.token_types) * self.width + 2 * self.width
        biases = self.layers * (4 * self.width + self.ffn_width + self.width)
        norms = self.layers * 2 * 2 * self.width
        head = self.width + 2 * self.width + self.vocabulary
        return self.matrix_parameters + embeddings + biases + norms + head

    def seen_keys(self, length: int) -> float:
        return float(length)


class MlpShape(_Shape):
    """A feed-forward model of the last `window` tokens (Bengio et al. 2003), with a tied head.

    The vectors of the window go through one matrix into the residual stream, in which `layers` blocks follow.
    """

    family: Literal["mlp"] = "mlp"
    window: Positive
    heads: Literal[1] = 1
    norm_epsilon: float = 1e-5

    @property
    def layer_matrix_parameters(self) -> int:
        return 2 * self.width * self.ffn_width

    @property
    def matrix_parameters(self) -> int:
        mix = self.window * self.width**2
        return mix + self.layers * self.layer_matrix_parameters + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + (self.layers + 1) * self.width

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


S = TypeVar("S", bound=_Shape)

Network = Annotated[LlamaShape | Gpt2Shape | BertShape | MlpShape, Field(discriminator="family")]
"""Families that are trained by gradients."""

Statistic = Annotated[NgramShape | HmmShape, Field(discriminator="family")]
"""Families that are trained by counting, really or in expectation."""

Shape = Annotated[
    LlamaShape | Gpt2Shape | BertShape | MlpShape | NgramShape | HmmShape, Field(discriminator="family")
]


def _width_divides(shape: S) -> S:
    if shape.width % shape.heads:
        raise ValueError(f"width {shape.width} is not a multiple of heads {shape.heads}")
    return shape
