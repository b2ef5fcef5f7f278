"""The shape of a decoder: its sizes, and the features in which decoder families differ.

A family is data: `FEATURES` names what it does differently from Llama, and the values become the defaults of
its shapes. The torch model (models/decoder.py) and the native engine implement each feature once, so a new
family whose features exist needs a row here, a mapping of its config.json (`decoder_config`) and of its
tensor names (models/names.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from windlass.spec.model.network import NetworkShape, Positive, WeightSizes, linear_weights, norm_weights

DecoderFamily = Literal[
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3",
    "phi", "phi3", "olmo2", "olmoe", "smollm3", "stablelm", "granite", "starcoder2", "gpt2", "gpt_neox",
    "falcon", "gpt_oss",
]  # fmt: skip
DECODERS: tuple[str, ...] = get_args(DecoderFamily)

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]
"""The nonlinearity of the feed-forward part; gelu_tanh is GELU's tanh form, relu2 the square of ReLU,
clamped_swiglu the gate of gpt-oss (up to 7, steepness 1.702)."""

_LAYER_NORM: Mapping[str, Any] = {"norm": "layer", "norm_bias": True}
_PLAIN_FFN: Mapping[str, Any] = {"gated": False, "ffn_bias": True}
_BIASED: Mapping[str, Any] = {"qkv_bias": True, "output_bias": True}
_GEMMA: Mapping[str, Any] = {
    "norm_offset": True,
    "activation": "gelu_tanh",
    "tied": True,
    "norm_epsilon": 1e-6,
}

FEATURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {"normalised_experts": True},
    "qwen2": {"qkv_bias": True, "norm_epsilon": 1e-6},
    "qwen2_moe": {"qkv_bias": True, "norm_epsilon": 1e-6},
    "qwen3": {"query_key_norm": "head", "norm_epsilon": 1e-6},
    "qwen3_moe": {"query_key_norm": "head", "normalised_experts": True, "norm_epsilon": 1e-6},
    "gemma": {**_GEMMA, "embedding_scale": "sqrt_width"},
    "gemma2": {**_GEMMA, "embedding_scale": "sqrt_width", "norm_placement": "both"},
    "gemma3": {
        **_GEMMA, "embedding_scale": "sqrt_width", "norm_placement": "both", "query_key_norm": "head",
        "window_theta": 10000.0,
    },
    "phi": {
        **_LAYER_NORM, **_PLAIN_FFN, **_BIASED, "activation": "gelu_tanh", "rotary_share": 0.5,
        "residual": "parallel", "shared_norm": True, "head_bias": True, "tied": False,
    },
    "phi3": {},
    "olmo2": {"norm_placement": "after", "query_key_norm": "all", "norm_epsilon": 1e-6},
    "olmoe": {"query_key_norm": "all"},
    "smollm3": {"norm_epsilon": 1e-6},
    "stablelm": {**_LAYER_NORM, "rotary_share": 0.25},
    "granite": {"norm_epsilon": 1e-6},
    "starcoder2": {**_LAYER_NORM, **_PLAIN_FFN, **_BIASED, "activation": "gelu_tanh"},
    "gpt2": {
        **_LAYER_NORM, **_PLAIN_FFN, **_BIASED, "activation": "gelu_tanh", "positions": "learned",
        "tied": True,
    },
    "gpt_neox": {
        **_LAYER_NORM, **_PLAIN_FFN, **_BIASED, "activation": "gelu", "rotary_share": 0.25,
        "residual": "parallel",
    },
    "falcon": {
        **_LAYER_NORM, "gated": False, "activation": "gelu", "residual": "parallel", "tied": True,
    },
    "gpt_oss": {
        **_BIASED, "activation": "clamped_swiglu", "sinks": True, "normalised_experts": True,
        "router_bias": True, "expert_bias": True,
    },
}  # fmt: skip
"""What each family does by default where it differs from Llama; the fields of DecoderShape."""


class RopeScaling(BaseModel):
    """Stretches rotary wave lengths, to reach contexts beyond the trained one.

    llama3: Grattafiori et al. 2024; linear: Chen et al. 2023, arXiv:2306.15595; dynamic: no change up to the
    context of the model; yarn: Peng et al. 2023, arXiv:2309.00071; longrope: Ding et al. 2024,
    arXiv:2402.13753.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["llama3", "linear", "dynamic", "yarn", "longrope"] = Field(
        "llama3", description="how waves are stretched"
    )
    factor: float = Field(8.0, ge=1, description="how much longer the context becomes")
    low_freq_factor: float = Field(
        1.0, gt=0, description="waves longer than original/this are stretched fully (llama3)"
    )
    high_freq_factor: float = Field(
        4.0, gt=0, description="waves shorter than original/this are left alone (llama3)"
    )
    original_context: Positive = Field(8192, description="context of the model before stretching")
    beta_fast: float = Field(32.0, gt=0, description="turns within the original context above which (yarn)")
    beta_slow: float = Field(1.0, gt=0, description="turns within the original context below which (yarn)")
    truncate: bool = Field(True, description="round the bounds to whole pairs (yarn)")
    attention_factor: float | None = Field(
        None, gt=0, description="multiplies cosines and sines (yarn, longrope; default: from the factor)"
    )
    short_factors: tuple[float, ...] = Field(
        (), description="by pair, within the original context (longrope)"
    )
    long_factors: tuple[float, ...] = Field((), description="by pair, beyond the original context (longrope)")

    @model_validator(mode="after")
    def _ordered(self) -> RopeScaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be greater than low_freq_factor")
        if self.kind == "longrope" and not (self.short_factors and self.long_factors):
            raise ValueError("longrope needs short_factors and long_factors")
        return self


class DecoderShape(NetworkShape):
    """A decoder-only transformer: sizes, then features. Fields left out are those of the family."""

    family: DecoderFamily = "llama"
    kv_heads: Positive
    explicit_head_width: Positive | None = None
    tied: bool = False
    head_bias: bool = False

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_offset: bool = False
    """The scale is 1 + weight."""
    norm_placement: Literal["before", "after", "both"] = "before"
    """Norms of attention and feed-forward: of the input, of the output, or of both."""
    norm_epsilon: float = 1e-5
    residual: Literal["sequential", "parallel"] = "sequential"
    """Parallel: attention and feed-forward both read the input of the block."""
    shared_norm: bool = False
    """One norm for attention and feed-forward of a parallel block."""

    positions: Literal["rotary", "learned"] = "rotary"
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of each head that is rotated."""
    window_theta: float | None = None
    """rope_theta of the layers with a window, which are not stretched then."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers without any positions (NoPE)."""

    qkv_bias: bool = False
    output_bias: bool = False
    query_key_norm: Literal["head", "all"] | None = None
    """A norm of queries and keys: of each head, or of all heads together."""
    attention_scale: float | None = None
    """Multiplies the scores; by default one over the root of the head width."""
    attention_softcap: float | None = None
    sinks: bool = False
    """One more logit for each head in the softmax of the scores, which takes attention from all keys."""
    window: Positive | None = None
    """Keys that a token sees, itself among them."""
    window_layers: tuple[int, ...] | None = None
    """The layers that have the window; None: all."""

    activation: Activation = "silu"
    gated: bool = True
    ffn_bias: bool = False

    experts: int = Field(0, ge=0)
    experts_per_token: int = Field(0, ge=0)
    expert_width: int = Field(0, ge=0)
    normalised_experts: bool = False
    """The weights of the chosen experts add up to one."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_width: int = Field(0, ge=0)
    """Width of a feed-forward part that sees every token, next to the experts."""
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    """Layers of a model with experts that have an ordinary feed-forward part."""
    balance_loss: float = Field(0.0, ge=0)
    """Weight of the loss that keeps experts busy alike (Fedus et al. 2021, arXiv:2101.03961, section 2.2)."""
    router_z_loss: float = Field(0.0, ge=0)
    """Weight of the loss that keeps router logits small (Zoph et al. 2022, arXiv:2202.08906, section 3)."""

    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _features_of_the_family(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        fields = {**FEATURES.get(str(given.get("family", "llama")), {}), **given}
        fields.setdefault("kv_heads", given.get("heads"))
        if fields.get("embedding_scale") == "sqrt_width":
            fields["embedding_scale"] = math.sqrt(given.get("width", 1))
        return fields

    @model_validator(mode="after")
    def _consistent(self) -> DecoderShape:
        if self.explicit_head_width is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.positions == "rotary" and (self.rotary_width % 2 or self.rotary_width == 0):
            raise ValueError(
                f"head width {self.rotary_width} is odd; rotary positions turn pairs"
                if self.rotary_share == 1.0
                else f"rotary_share {self.rotary_share} of head width {self.head_width} is no even number"
            )
        if self.shared_gate and not self.shared_width:
            raise ValueError("shared_gate belongs to a shared_width")
        if self.head_bias and self.tied:
            raise ValueError("head_bias belongs to a head that is not tied")
        if self.shared_norm and self.residual != "parallel":
            raise ValueError("shared_norm belongs to parallel residual blocks")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(f"{self.experts} experts need experts_per_token from 1 to {self.experts}")
        if self.experts and not self.expert_width:
            raise ValueError("experts need expert_width")
        if not self.experts and (self.experts_per_token or self.expert_width or self.shared_width):
            raise ValueError(
                "experts_per_token, expert_width and shared_width belong to a model with experts"
            )
        return self

    @property
    def head_width(self) -> int:
        return self.explicit_head_width or self.width // self.heads

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def rotary_width(self) -> int:
        """Features of a head that are rotated."""
        return int(self.head_width * self.rotary_share)

    def window_of(self, layer: int) -> int | None:
        """Return how many keys a token sees in a layer, or None for all."""
        return self.window if self.window_layers is None or layer in self.window_layers else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and layer not in self.dense_layers

    @property
    def sparse_layers(self) -> int:
        return sum(self.is_sparse(layer) for layer in range(self.layers))

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of a layer in products for every token: of experts, those that a token is sent to."""
        attention = 2 * self.width * (self.attention_width + self.kv_width)
        matrices = 3 if self.gated else 2
        dense = matrices * self.width * self.ffn_width
        if not self.experts:
            return attention + dense
        active = self.experts_per_token * self.expert_width + self.shared_width
        sparse = matrices * self.width * active + self.width * (self.experts + self.shared_gate)
        busy = self.sparse_layers
        return attention + (busy * sparse + (self.layers - busy) * dense) // self.layers

    @property
    def matrix_parameters(self) -> int:
        return self.layers * self.layer_matrix_parameters + self.vocabulary * self.width

    def embedding_weights(self) -> WeightSizes:
        found: WeightSizes = {"embedding.weight": (self.vocabulary, self.width)}
        if self.positions == "learned":
            found["positions.weight"] = (self.context, self.width)
        return found

    def layer_weights(self, layer: int = 0) -> WeightSizes:
        width, inner, keys = self.width, self.attention_width, self.kv_width
        found = linear_weights("attention.query", inner, width, bias=self.qkv_bias)
        found |= linear_weights("attention.key", keys, width, bias=self.qkv_bias)
        found |= linear_weights("attention.value", keys, width, bias=self.qkv_bias)
        found |= linear_weights("attention.output", width, inner, bias=self.output_bias)
        if self.query_key_norm is not None:
            each = self.query_key_norm == "head"
            found["attention.query_norm.weight"] = (self.head_width if each else inner,)
            found["attention.key_norm.weight"] = (self.head_width if each else keys,)
        if self.sinks:
            found["attention.sinks"] = (self.heads,)
        found |= self._sparse_weights() if self.is_sparse(layer) else self._ffn("ffn", self.ffn_width)
        for name in self.norm_names:
            found |= norm_weights(name, width, bias=self.norm_bias)
        return found

    def head_weights(self) -> WeightSizes:
        matrix = "embedding.weight" if self.tied else "head.weight"
        found: WeightSizes = {matrix: (self.vocabulary, self.width)}
        if self.head_bias:
            found["head.bias"] = (self.vocabulary,)
        return found | norm_weights("norm", self.width, bias=self.norm_bias)

    @property
    def norm_names(self) -> tuple[str, ...]:
        """Names of the norms of a block."""
        before = ("attention_norm",) if self.shared_norm else ("attention_norm", "ffn_norm")
        after = ("attention_post_norm", "ffn_post_norm")
        return {"before": before, "after": after, "both": before + after}[self.norm_placement]

    def _sparse_weights(self) -> WeightSizes:
        found = linear_weights("ffn.router", self.experts, self.width, bias=self.router_bias)
        for expert in range(self.experts):
            found |= self._ffn(f"ffn.experts.{expert}", self.expert_width, bias=self.expert_bias)
        if self.shared_width:
            found |= self._ffn("ffn.shared", self.shared_width)
        if self.shared_gate:
            found["ffn.shared_gate.weight"] = (1, self.width)
        return found

    def _ffn(self, name: str, inner: int, *, bias: bool | None = None) -> WeightSizes:
        bias = self.ffn_bias if bias is None else bias
        found = linear_weights(f"{name}.gate", inner, self.width, bias=bias) if self.gated else {}
        found |= linear_weights(f"{name}.up", inner, self.width, bias=bias)
        return found | linear_weights(f"{name}.down", self.width, inner, bias=bias)

    def seen_keys(self, length: int) -> float:
        """Keys that a token attends to on average: half of them, fewer in layers with a window."""
        whole = super().seen_keys(length)
        if self.window is None or self.window >= length:
            return whole
        with_window = sum(self.window_of(layer) is not None for layer in range(self.layers))
        within = self.window - self.window * (self.window - 1) / (2 * length)
        return (with_window * within + (self.layers - with_window) * whole) / self.layers
