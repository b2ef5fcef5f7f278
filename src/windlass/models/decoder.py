"""The decoder: every family of decoder-only transformers, built from the features of its shape.

A feature is implemented once, here or in `feed_forward`, `norms`, `attention` and `rotary`;
spec/model/decoder.py says which family has which.

Legend: B batch, T time, D width, V vocabulary, H query heads, K key/value heads, C width of a head,
R pairs of a head that rotary positions turn.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from windlass.models.attention import AttentionRule, attend, join_heads, split_heads
from windlass.models.feed_forward import Experts, FeedForward
from windlass.models.language import KeyValues, LanguageModel
from windlass.models.norms import norm_of
from windlass.models.rotary import stretched, theta_of
from windlass.spec.model.decoder import DecoderShape

Turn = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary angles, (T, R) or (B, 1, T, R)."""


class Decoder(LanguageModel):
    """The whole model."""

    residual: ClassVar[tuple[str, ...]] = ("attention.output.weight", "down.weight")
    entry: ClassVar[tuple[str, ...]] = ("embedding", "positions")
    exit: ClassVar[tuple[str, ...]] = ("norm", "head")

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape: DecoderShape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if shape.positions == "learned" else None
        self.layers = nn.ModuleDict({str(n): DecoderBlock(shape, n) for n in range(shape.layers)})
        self.norm = norm_of(shape, shape.width)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=shape.head_bias)
        self.place_tables(torch.get_default_device())

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        if self.positions is not None:
            if positions_BT is None:
                positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
            x_BTD = x_BTD + self.positions(positions_BT)
        scale = self.shape.embedding_scale
        # Rounded to the type of the weights, as the published models were trained.
        return x_BTD if scale == 1.0 else x_BTD * torch.tensor(scale, dtype=x_BTD.dtype)

    def through(
        self,
        x_BTD: Tensor,
        length: int,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        turns = {name: self._turn(name, length, positions_BT, x_BTD.dtype) for name in self._tables()}
        for number, block in self.layers.items():
            x_BTD = block(x_BTD, turns.get(self._table_of(int(number))), cache, key_mask_BT)
        return x_BTD

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)

    def features(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self.shape.logit_scale == 1.0 else x_BTD * self.shape.logit_scale

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def output_bias(self) -> Tensor | None:
        return None if self.head is None else self.head.bias

    @property
    def logit_softcap(self) -> float | None:
        return self.shape.logit_softcap

    def place_tables(self, device: torch.device) -> None:
        for name in self._tables():
            cos_TR, sin_TR = _tables(self.shape, device, windowed=name == "window")
            self.register_buffer(f"{name}_cos_TR", cos_TR, persistent=False)
            self.register_buffer(f"{name}_sin_TR", sin_TR, persistent=False)

    def _tables(self) -> tuple[str, ...]:
        """Name the tables of angles: one, or another one for the layers with a window."""
        if self.shape.positions != "rotary":
            return ()
        return ("rotary",) if self.shape.window_theta is None else ("rotary", "window")

    def _table_of(self, layer: int) -> str:
        """Name the table of a layer; none has the name ""."""
        if layer in self.shape.unrotated_layers:
            return ""
        has_own = self.shape.window_theta is not None and self.shape.window_of(layer) is not None
        return "window" if has_own else "rotary"

    def _turn(self, name: str, length: int, positions_BT: Tensor | None, dtype: torch.dtype) -> Turn:
        cos_TR, sin_TR = self.get_buffer(f"{name}_cos_TR"), self.get_buffer(f"{name}_sin_TR")
        if positions_BT is None:
            return cos_TR[:length].to(dtype), sin_TR[:length].to(dtype)
        return cos_TR[positions_BT][:, None].to(dtype), sin_TR[positions_BT][:, None].to(dtype)


class DecoderBlock(nn.Module):
    """Attention and feed-forward, each added to the residual stream: one after the other, or in parallel."""

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        names = shape.norm_names
        self.attention_norm = _norm_if("attention_norm" in names, shape)
        self.attention = DecoderAttention(shape, layer)
        self.attention_post_norm = _norm_if("attention_post_norm" in names, shape)
        self.ffn_norm = _norm_if("ffn_norm" in names, shape)
        self.ffn: nn.Module = (
            Experts(shape)
            if shape.is_sparse(layer)
            else FeedForward(shape, shape.ffn_width, bias=shape.ffn_bias)
        )
        self.ffn_post_norm = _norm_if("ffn_post_norm" in names, shape)
        self.is_parallel, self.scale = shape.residual == "parallel", shape.residual_scale

    def forward(
        self, x_BTD: Tensor, turn: Turn | None, cache: KeyValues | None, key_mask_BT: Tensor | None
    ) -> Tensor:
        normed_BTD = _through(self.attention_norm, x_BTD)
        y_BTD = _through(self.attention_post_norm, self.attention(normed_BTD, turn, cache, key_mask_BT))
        if self.is_parallel:
            if self.ffn_norm is not None:
                normed_BTD = self.ffn_norm(x_BTD)
            return x_BTD + self._scaled(y_BTD + self.ffn(normed_BTD))
        x_BTD = x_BTD + self._scaled(y_BTD)
        return x_BTD + self._scaled(_through(self.ffn_post_norm, self.ffn(_through(self.ffn_norm, x_BTD))))

    def _scaled(self, y_BTD: Tensor) -> Tensor:
        return y_BTD if self.scale == 1.0 else y_BTD * self.scale


class DecoderAttention(nn.Module):
    """Causal attention in which H/K query heads share one key/value head."""

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_width = layer, shape.head_width
        self.rotary_width, self.norm_kind = shape.rotary_width, shape.query_key_norm
        self.rule = AttentionRule(shape.window_of(layer), shape.attention_scale, shape.attention_softcap)
        self.query = nn.Linear(shape.width, shape.attention_width, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.width, shape.kv_width, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.width, shape.kv_width, bias=shape.qkv_bias)
        self.output = nn.Linear(shape.attention_width, shape.width, bias=shape.output_bias)
        if shape.query_key_norm is not None:
            each = shape.query_key_norm == "head"
            self.query_norm = norm_of(shape, shape.head_width if each else shape.attention_width)
            self.key_norm = norm_of(shape, shape.head_width if each else shape.kv_width)
        self.sinks = nn.Parameter(torch.zeros(shape.heads)) if shape.sinks else None

    def forward(
        self, x_BTD: Tensor, turn: Turn | None, cache: KeyValues | None, key_mask_BT: Tensor | None
    ) -> Tensor:
        q_BTD, k_BTD = self.query(x_BTD), self.key(x_BTD)
        if self.norm_kind == "all":
            q_BTD, k_BTD = self.query_norm(q_BTD), self.key_norm(k_BTD)
        q_BHTC, k_BKTC = split_heads(q_BTD, self.head_width), split_heads(k_BTD, self.head_width)
        if self.norm_kind == "head":
            q_BHTC, k_BKTC = self.query_norm(q_BHTC), self.key_norm(k_BKTC)
        if turn is not None:
            q_BHTC, k_BKTC = self._rotated(q_BHTC, turn), self._rotated(k_BKTC, turn)
        v_BKTC = split_heads(self.value(x_BTD), self.head_width)
        sinks_H = local_part(self.sinks)
        if cache is None:
            y_BHTC = attend(
                q_BHTC, k_BKTC, v_BKTC, causal=True, key_mask_BT=key_mask_BT, rule=self.rule, sinks_H=sinks_H
            )
        else:
            y_BHTC = cache.attend(self.layer, q_BHTC, k_BKTC, v_BKTC, self.rule, sinks_H)
        return self.output(join_heads(y_BHTC))

    def _rotated(self, x_BHTC: Tensor, turn: Turn) -> Tensor:
        if self.rotary_width == self.head_width:
            return rotate(x_BHTC, turn)
        turned, rest = x_BHTC[..., : self.rotary_width], x_BHTC[..., self.rotary_width :]
        return torch.cat((rotate(turned, turn), rest), dim=-1)


def rotate(x_BHTC: Tensor, turn: Turn) -> Tensor:
    """Turn pair r of every head by the angle of its position; a pair is (r, r + C/2)."""
    cos, sin = turn
    a_BHTR, b_BHTR = x_BHTC.chunk(2, dim=-1)
    return torch.cat((a_BHTR * cos - b_BHTR * sin, b_BHTR * cos + a_BHTR * sin), dim=-1)


def local_part(parameter: Tensor | None) -> Tensor | None:
    """Return this process's part of a parameter that tensor parallelism may have divided."""
    return parameter.to_local() if isinstance(parameter, torch.distributed.tensor.DTensor) else parameter


def _tables(shape: DecoderShape, device: torch.device, *, windowed: bool) -> Turn:
    """Return cosines and sines of every position and pair, in float32 whatever the weights are."""
    if device.type == "meta":
        empty_TR = torch.empty(shape.context, shape.rotary_width // 2, device=device)
        return empty_TR, empty_TR
    evens_R = torch.arange(0, shape.rotary_width, 2, dtype=torch.float32, device="cpu")
    speed_R = 1.0 / theta_of(shape, windowed=windowed) ** (evens_R / shape.rotary_width)
    speeds, size = stretched(speed_R.numpy(), shape, windowed=windowed)
    positions_T = torch.arange(shape.context, dtype=torch.float32, device="cpu")
    angles_TR = torch.outer(positions_T, torch.from_numpy(speeds)).to(device)
    cos_TR, sin_TR = angles_TR.cos(), angles_TR.sin()
    return (cos_TR, sin_TR) if size == 1.0 else (cos_TR * size, sin_TR * size)


def _norm_if(there: bool, shape: DecoderShape) -> nn.Module | None:
    return norm_of(shape, shape.width) if there else None


def _through(norm: nn.Module | None, x_BTD: Tensor) -> Tensor:
    return x_BTD if norm is None else norm(x_BTD)
