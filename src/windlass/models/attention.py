"""Attention without a KV cache: all tokens are in the batch.

Legend: B batch, T time, H query heads, K key/value heads (H is a multiple of K), C width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, *, causal: bool, key_mask_BT: Tensor | None
) -> Tensor:
    """Scaled dot-product attention.

    Without padding no mask exists as a tensor, which lets the kernel skip the half that a causal mask
    hides.
    """
    grouped = q_BHTC.shape[1] != k_BKTC.shape[1]
    if key_mask_BT is None:
        return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=causal, enable_gqa=grouped)
    mask = key_mask_BT[:, None, None, :].bool()
    if causal:
        length = q_BHTC.shape[2]
        earlier_TT = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        # A padding token attends to itself, or the softmax of its row would be over nothing.
        itself_TT = torch.eye(length, dtype=torch.bool, device=mask.device)
        mask = (mask & earlier_TT) | itself_TT
    return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, attn_mask=mask, enable_gqa=grouped)


def split_heads(x_BTD: Tensor, width: int) -> Tensor:
    """Cut the last dimension into heads of `width` and put the heads before time."""
    return x_BTD.view(*x_BTD.shape[:-1], -1, width).transpose(1, 2)


def join_heads(x_BHTC: Tensor) -> Tensor:
    """Undo `split_heads`."""
    return x_BHTC.transpose(1, 2).flatten(2)
