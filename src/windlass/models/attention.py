"""Attention over keys and values that are in memory.

Legend: B batch, T queries, S keys, H query heads, K key/value heads (H is a
multiple of K), C width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AttentionRule:
    """In what the attention of a layer differs from softmax(q k' / root of C) v over all keys."""

    window: int | None = None
    """Keys that a query sees, its own among them."""
    scale: float | None = None
    softcap: float | None = None


PLAIN = AttentionRule()


def attend(
    q_BHTC: Tensor,
    k_BKTC: Tensor,
    v_BKTC: Tensor,
    *,
    causal: bool,
    key_mask_BT: Tensor | None,
    rule: AttentionRule = PLAIN,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Attention without a KV cache: all tokens are in the batch.

    Where a causal mask says everything, none exists as a tensor, which lets the kernel skip the half that it
    hides.
    """
    length = q_BHTC.shape[2]
    has_window = rule.window is not None and rule.window < length
    if key_mask_BT is None and not has_window and rule.softcap is None and sinks_H is None:
        return F.scaled_dot_product_attention(
            q_BHTC, k_BKTC, v_BKTC,
            is_causal=causal, scale=rule.scale, enable_gqa=q_BHTC.shape[1] != k_BKTC.shape[1],
        )  # fmt: skip
    mask = None if key_mask_BT is None else key_mask_BT[:, None, None, :].bool()
    if causal:
        positions_T = torch.arange(length, device=q_BHTC.device)
        seen_TT = causal_mask(positions_T, positions_T, rule.window)
        # A padding token attends to itself, or the softmax of its row would be over nothing.
        itself_TT = positions_T[:, None] == positions_T
        mask = seen_TT if mask is None else (mask & seen_TT) | itself_TT
    return masked_attention(q_BHTC, k_BKTC, v_BKTC, mask, rule, sinks_H)


def causal_mask(queries_T: Tensor, keys_S: Tensor, window: int | None) -> Tensor:
    """Return which keys (S) each query (T) sees, given the positions of both."""
    seen_TS = queries_T[:, None] >= keys_S
    return seen_TS if window is None else seen_TS & (keys_S > queries_T[:, None] - window)


def masked_attention(
    q_BHTC: Tensor,
    k_BKSC: Tensor,
    v_BKSC: Tensor,
    mask: Tensor | None,
    rule: AttentionRule = PLAIN,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Attention to the keys that a mask (broadcast to B, H, T, S) leaves."""
    groups = q_BHTC.shape[1] // k_BKSC.shape[1]
    if rule.softcap is None and sinks_H is None:
        return F.scaled_dot_product_attention(
            q_BHTC, k_BKSC, v_BKSC, attn_mask=mask, scale=rule.scale, enable_gqa=groups != 1
        )
    scale = q_BHTC.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores_BHTS = (q_BHTC @ k_BKSC.repeat_interleave(groups, 1).transpose(2, 3)) * scale
    if rule.softcap is not None:
        scores_BHTS = rule.softcap * torch.tanh(scores_BHTS / rule.softcap)
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf)
    if sinks_H is not None:
        sinks_BHT1 = sinks_H[None, :, None, None].expand(*scores_BHTS.shape[:3], 1)
        scores_BHTS = torch.cat((scores_BHTS, sinks_BHT1.to(scores_BHTS.dtype)), dim=-1)
    shares = scores_BHTS.float().softmax(-1).to(v_BKSC.dtype)
    return shares[..., : k_BKSC.shape[2]] @ v_BKSC.repeat_interleave(groups, 1)


def split_heads(x_BTD: Tensor, width: int) -> Tensor:
    """Cut the last dimension into heads of `width` and put the heads before time."""
    return x_BTD.view(*x_BTD.shape[:-1], -1, width).transpose(1, 2)


def join_heads(x_BHTC: Tensor) -> Tensor:
    """Undo `split_heads`."""
    return x_BHTC.transpose(1, 2).flatten(2)
