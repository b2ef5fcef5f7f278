"""Llama 1 to 3: RMSNorm before each part, rotary positions, grouped queries, SwiGLU, no biases.

Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.

Legend: B batch, T time, D width, V vocabulary, F inner width of the feed-forward part,
H query heads, K key/value heads, C width of a head, R = C/2 pairs that rotary positions turn.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.models.attention import attend, join_heads, split_heads
from windlass.models.language import KeyValues, LanguageModel
from windlass.spec.shape import LlamaShape, RopeScaling

Turn = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary angles, (T, R) or (B, 1, T, R)."""


class Llama(LanguageModel):
    """The whole model."""

    residual: ClassVar[tuple[str, ...]] = ("attention.output.weight", "ffn.down.weight")
    exit: ClassVar[tuple[str, ...]] = ("norm", "head")

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape: LlamaShape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleDict({str(n): LlamaBlock(shape, n) for n in range(shape.layers)})
        self.norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.place_tables(torch.get_default_device())

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        return self.embedding(tokens_BT)

    def through(
        self,
        x_BTD: Tensor,
        length: int,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        turn = self._turn(length, positions_BT, x_BTD.dtype)
        for block in self.layers.values():
            x_BTD = block(x_BTD, turn, cache, key_mask_BT)
        return x_BTD

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def place_tables(self, device: torch.device) -> None:
        angles_TR = rotary_angles(self.shape, device)
        self.register_buffer("cos_TR", angles_TR.cos(), persistent=False)
        self.register_buffer("sin_TR", angles_TR.sin(), persistent=False)

    def _turn(self, length: int, positions_BT: Tensor | None, dtype: torch.dtype) -> Turn:
        cos_TR, sin_TR = self.get_buffer("cos_TR"), self.get_buffer("sin_TR")
        if positions_BT is None:
            return cos_TR[:length].to(dtype), sin_TR[:length].to(dtype)
        return cos_TR[positions_BT][:, None].to(dtype), sin_TR[positions_BT][:, None].to(dtype)


class LlamaBlock(nn.Module):
    """Attention, then feed-forward, each beside the residual stream."""

    def __init__(self, shape: LlamaShape, layer: int) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.attention = LlamaAttention(shape, layer)
        self.ffn_norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.ffn = LlamaFeedForward(shape)

    def forward(
        self, x_BTD: Tensor, turn: Turn, cache: KeyValues | None, key_mask_BT: Tensor | None
    ) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), turn, cache, key_mask_BT)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class LlamaAttention(nn.Module):
    """Causal attention in which H/K query heads share one key/value head."""

    def __init__(self, shape: LlamaShape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_width = layer, shape.head_width
        kv_width = shape.kv_heads * shape.head_width
        self.query = nn.Linear(shape.width, shape.attention_width, bias=False)
        self.key = nn.Linear(shape.width, kv_width, bias=False)
        self.value = nn.Linear(shape.width, kv_width, bias=False)
        self.output = nn.Linear(shape.attention_width, shape.width, bias=False)

    def forward(
        self, x_BTD: Tensor, turn: Turn, cache: KeyValues | None, key_mask_BT: Tensor | None
    ) -> Tensor:
        q_BHTC = rotate(split_heads(self.query(x_BTD), self.head_width), turn)
        k_BKTC = rotate(split_heads(self.key(x_BTD), self.head_width), turn)
        v_BKTC = split_heads(self.value(x_BTD), self.head_width)
        if cache is None:
            y_BHTC = attend(q_BHTC, k_BKTC, v_BKTC, causal=True, key_mask_BT=key_mask_BT)
        else:
            y_BHTC = cache.attend(self.layer, q_BHTC, k_BKTC, v_BKTC)
        return self.output(join_heads(y_BHTC))


class LlamaFeedForward(nn.Module):
    """SwiGLU: a gate decides how much of each inner feature passes."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        return self.down(h_BTF)


class RmsNorm(nn.Module):
    """Scales to unit mean square. The mean is taken in float32: squares of bfloat16 lose too much."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide_BTD = x_BTD.float()
        scale_BT1 = torch.rsqrt(wide_BTD.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (wide_BTD * scale_BT1).to(x_BTD.dtype)


def rotate(x_BHTC: Tensor, turn: Turn) -> Tensor:
    """Turn pair r of every head by the angle of its position; a pair is (r, r + C/2)."""
    cos, sin = turn
    a_BHTR, b_BHTR = x_BHTC.chunk(2, dim=-1)
    return torch.cat((a_BHTR * cos - b_BHTR * sin, b_BHTR * cos + a_BHTR * sin), dim=-1)


def rotary_angles(shape: LlamaShape, device: torch.device) -> Tensor:
    """Return the angle of every position and pair, in float32 whatever the weights are."""
    evens_R = torch.arange(0, shape.head_width, 2, dtype=torch.float32, device=device)
    speed_R = 1.0 / shape.rope_theta ** (evens_R / shape.head_width)
    if shape.rope_scaling is not None:
        speed_R = _stretched(speed_R, shape.rope_scaling)
    positions_T = torch.arange(shape.context, dtype=torch.float32, device=device)
    return torch.outer(positions_T, speed_R)


def _stretched(speed_R: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow down the waves that are long against the original context, as Llama 3.1 does.

    Short waves, which tell neighbours apart, keep their speed; those longer than the original context
    become `factor` times slower; between the two bounds the speed goes over smoothly.
    """
    waves_R = scaling.original_context * speed_R / (2 * math.pi)
    """How often a wave fits into the original context."""
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept_R = ((waves_R - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return speed_R * (kept_R + (1.0 - kept_R) / scaling.factor)
