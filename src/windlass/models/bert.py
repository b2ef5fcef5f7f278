"""BERT: an encoder that sees both sides, LayerNorm after each part, and the head for masked tokens
where it has one.

Devlin et al. 2018, arXiv:1810.04805.

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
from windlass.spec.shape import BertShape


class Bert(LanguageModel):
    """The whole model."""

    causal: ClassVar[bool] = False
    entry: ClassVar[tuple[str, ...]] = ("embedding", "positions", "token_types", "embedding_norm")
    exit: ClassVar[tuple[str, ...]] = ("head",)

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape: BertShape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.token_types = nn.Embedding(shape.token_types, shape.width)
        self.embedding_norm = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.layers = nn.ModuleDict({str(n): BertBlock(shape, n) for n in range(shape.layers)})
        self.head = BertHead(shape) if shape.masked_head else None

    def embed(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        token_types_BT: Tensor | None = None,
    ) -> Tensor:
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        if token_types_BT is None:
            token_types_BT = torch.zeros_like(tokens_BT)
        x_BTD = self.embedding(tokens_BT) + self.token_types(token_types_BT) + self.positions(positions_BT)
        return self.embedding_norm(x_BTD)

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

    def features(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self.head is None else self.head(x_BTD)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    @property
    def output_bias(self) -> Tensor | None:
        return None if self.head is None else self.head.bias


class BertBlock(nn.Module):
    """Attention, then feed-forward; the norm comes after each, upon the residual stream itself."""

    def __init__(self, shape: BertShape, layer: int) -> None:
        super().__init__()
        self.attention = BertAttention(shape, layer)
        self.attention_norm = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.ffn = BertFeedForward(shape)
        self.ffn_norm = nn.LayerNorm(shape.width, shape.norm_epsilon)

    def forward(self, x_BTD: Tensor, cache: KeyValues | None, key_mask_BT: Tensor | None) -> Tensor:
        x_BTD = self.attention_norm(x_BTD + self.attention(x_BTD, cache, key_mask_BT))
        return self.ffn_norm(x_BTD + self.ffn(x_BTD))


class BertAttention(nn.Module):
    """Attention over all tokens that are not padding."""

    def __init__(self, shape: BertShape, layer: int) -> None:
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
            y_BHTC = attend(q_BHTC, k_BHTC, v_BHTC, causal=False, key_mask_BT=key_mask_BT)
        else:
            y_BHTC = cache.attend(self.layer, q_BHTC, k_BHTC, v_BHTC)
        return self.output(join_heads(y_BHTC))


class BertFeedForward(nn.Module):
    """Two matrices with an exact GELU between them."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.ffn_width)
        self.down = nn.Linear(shape.ffn_width, shape.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class BertHead(nn.Module):
    """What stands between the encoder and the (tied) output matrix, and that matrix's bias."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(x_BTD)))
