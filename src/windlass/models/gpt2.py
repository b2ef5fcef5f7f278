"""GPT-2: LayerNorm before each part, learned positions, GELU, biases everywhere, tied head.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Legend: B batch, T time, D width, V vocabulary, F inner width of the feed-forward part,
H heads, C width of a head.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.models.attention import attend, join_heads, split_heads
from windlass.models.language import KeyValues, LanguageModel
from windlass.spec.shape import Gpt2Shape


class Gpt2(LanguageModel):
    """The whole model."""

    residual: ClassVar[tuple[str, ...]] = ("attention.output.weight", "ffn.down.weight")
    entry: ClassVar[tuple[str, ...]] = ("embedding", "positions")
    exit: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.shape: Gpt2Shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.layers = nn.ModuleDict({str(n): Gpt2Block(shape, n) for n in range(shape.layers)})
        self.norm = nn.LayerNorm(shape.width, shape.norm_epsilon)

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        return self.embedding(tokens_BT) + self.positions(positions_BT)

    def through(
        self,
        x_BTD: Tensor,
        length: int,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        for block in self.layers.values():
            x_BTD = block(x_BTD, cache, key_mask_BT)
        return x_BTD

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight


class Gpt2Block(nn.Module):
    """Attention, then feed-forward, each beside the residual stream."""

    def __init__(self, shape: Gpt2Shape, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.attention = Gpt2Attention(shape, layer)
        self.ffn_norm = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.ffn = Gpt2FeedForward(shape)

    def forward(self, x_BTD: Tensor, cache: KeyValues | None, key_mask_BT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cache, key_mask_BT)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class Gpt2Attention(nn.Module):
    """Causal attention. The published weights hold the first three matrices as one (see `names`)."""

    def __init__(self, shape: Gpt2Shape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_width = layer, shape.head_width
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, x_BTD: Tensor, cache: KeyValues | None, key_mask_BT: Tensor | None) -> Tensor:
        q_BHTC, k_BHTC, v_BHTC = (
            split_heads(matrix(x_BTD), self.head_width) for matrix in (self.query, self.key, self.value)
        )
        if cache is None:
            y_BHTC = attend(q_BHTC, k_BHTC, v_BHTC, causal=True, key_mask_BT=key_mask_BT)
        else:
            y_BHTC = cache.attend(self.layer, q_BHTC, k_BHTC, v_BHTC)
        return self.output(join_heads(y_BHTC))


class Gpt2FeedForward(nn.Module):
    """Two matrices with a GELU between them, in the tanh form that GPT-2 was trained with."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.ffn_width)
        self.down = nn.Linear(shape.ffn_width, shape.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.gelu(self.up(x_BTD), approximate="tanh")
        return self.down(h_BTF)
