"""A training step to be predicted: which model, on which devices, divided how, by which software.

Plain data without defaults that guess: the caller decides everything. Published rows (lab/planner) and
layouts under search (fleet/layouts.py) are turned into it, so one set of formulas serves both. Runs of our
own trainer on this machine are described by local/step.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Precision = Literal["float32", "float16", "bfloat16", "float8", "float4"]
Sharding = Literal["none", "optimizer", "gradients", "full"]
"""What data-parallel processes divide among them: nothing, the optimizer's state (ZeRO-1, distributed
optimizer), gradients too (ZeRO-2), or weights too (ZeRO-3, FSDP)."""
Attention = Literal["unfused", "fused-softmax", "flash", "flash3"]
"""Separate kernels, one for mask and softmax, one for all; the last as made for Hopper and later devices
(FlashAttention-3, cuDNN 9)."""
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Sizes:
    """A transformer, dense or with experts."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    gated: bool
    vocabulary: int
    tied: bool
    causal: bool = True
    experts: int = 0
    """In each layer that has experts; 0 for a dense model."""
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    """Of experts that see every token."""
    dense_layers: int = 0
    """First layers of a model with experts that have none."""
    latent: tuple[int, int] | None = None
    """Ranks of compressed queries and keys/values (multi-head latent attention)."""

    @cached_property
    def attention_weights(self) -> int:
        """Of one layer."""
        query, key_value = self.heads * self.head_width, self.kv_heads * self.head_width
        if self.latent is not None:
            down = self.width * (sum(self.latent) + 64)
            up = self.latent[0] * self.heads * (self.head_width + 64) + self.latent[1] * 2 * query
            return down + up + query * self.width
        return self.width * (2 * query + 2 * key_value)

    def ffn_weights(self, width: int) -> int:
        return (3 if self.gated else 2) * self.width * width

    @cached_property
    def layer_weights(self) -> int:
        """Of one layer, all its experts included."""
        if not self.experts:
            return self.attention_weights + self.ffn_weights(self.ffn_width)
        ffn = self.experts * self.ffn_weights(self.expert_width) + self.ffn_weights(self.shared_width)
        return self.attention_weights + ffn + self.width * self.experts

    @cached_property
    def dense_layer_weights(self) -> int:
        return self.attention_weights + self.ffn_weights(self.ffn_width)

    @cached_property
    def active_layer_weights(self) -> int:
        """Of one layer, those that a token meets."""
        if not self.experts:
            return self.dense_layer_weights
        return self.attention_weights + self.ffn_weights(self.top_k * self.expert_width + self.shared_width)

    @cached_property
    def parameters(self) -> int:
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.width
        sparse = self.layers - self.dense_layers
        return embeddings + sparse * self.layer_weights + self.dense_layers * self.dense_layer_weights


@dataclass(frozen=True)
class Device:
    """One accelerator, or the processor of one machine."""

    name: str
    peak_flops: dict[str, float]
    """By precision, dense."""
    memory_bytes: float
    memory_bytes_s: float
    link_bytes_s: float
    """To its neighbours in the machine, in each direction."""
    network_bytes_s: float
    """To other machines."""
    domain: int = 8
    """Devices that are joined by the fast links."""
    watts: float | None = None
    dollars_h: tuple[float, float] | None = None
    """Price range by the hour."""
    reachable_flops: float | None = None
    """What large bfloat16 matrix products were measured to reach."""


@dataclass(frozen=True)
class TrainingStep:
    """One step of training."""

    sizes: Sizes
    sequence: int
    global_batch: int
    """Sequences."""
    micro_batch: int
    """Sequences that one device computes at a time."""
    device: Device
    devices: int
    per_machine: int
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    virtual: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    sharding: Sharding = "none"
    shards: int = 1
    """Devices that divide what `sharding` divides."""
    recompute: Recompute = "none"
    recompute_share: float = 1.0
    """Of the layers, to which `recompute` applies."""
    precision: Precision = "bfloat16"
    attention: Attention = "flash"
    software: str = ""
    """Framework and its generation, as efficiency tables name them."""
    gradient_bytes: int | None = None
    """In which one gradient is accumulated; None for what the software does."""
    overlaps_tensor: bool | None = None
    """Whether exchanges of tensor parallelism pass behind products; None for what the software does."""
    fused_loss: bool = False
    """Whether logits are never stored in float32, because the loss is compiled or taken in chunks."""

    @property
    def recompute_name(self) -> str:
        """The policy, with the share of the layers where these are not all: "full/0.5"."""
        return self.recompute if self.recompute_share == 1 else f"{self.recompute}/{self.recompute_share:g}"

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a device in a step."""
        return max(1, self.global_batch // (self.dp * self.micro_batch))
