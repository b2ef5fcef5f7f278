"""Divides each sequence among processes (context parallel).

Every process computes its own tokens; in attention the keys and values of all of them are gathered, as
Llama 3 was trained (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2). Under a causal mask later
tokens cost more, so a sequence is cut into twice as many pieces as processes and each gets one from the
front and the matching one from the back.

Legend: B batch, T tokens of the whole sequence, S tokens of this process, H query heads, K key/value heads,
C width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.models.attention import PLAIN, AttentionRule, causal_mask, masked_attention


class DividedSequence:
    """Which tokens this process computes, and the attention that sees all of them.

    It replaces a model's KV cache, so models need not know of it.
    """

    def __init__(self, group: dist.ProcessGroup, context: int, device: torch.device, *, causal: bool) -> None:
        self._group, self._causal = group, causal
        parts = [own_tokens(context, group.size(), rank, causal=causal) for rank in range(group.size())]
        self.own_S = parts[group.rank()].to(device)
        self._order_T = torch.cat(parts).argsort().to(device)
        self._all_T = torch.arange(context, device=device)
        self._mask_ST = causal_mask(self.own_S, self._all_T, None) if causal else None

    @property
    def positions(self) -> Tensor:
        """The positions of this process's tokens, as a batch of one."""
        return self.own_S[None]

    def taken(self, x_BT: Tensor) -> Tensor:
        """Return the tokens of a batch that this process computes."""
        return x_BT[:, self.own_S]

    def attend(
        self,
        layer: int,
        q_BHSC: Tensor,
        k_BKSC: Tensor,
        v_BKSC: Tensor,
        rule: AttentionRule = PLAIN,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Attention of this process's queries over the keys and values of the whole sequence."""
        both = torch.stack((k_BKSC, v_BKSC))
        gathered = gather_tokens(both, self._group)
        k_BKTC, v_BKTC = gathered.index_select(3, self._order_T)
        mask_ST = self._mask_ST
        if mask_ST is not None and rule.window is not None:
            mask_ST = causal_mask(self.own_S, self._all_T, rule.window)
        return masked_attention(q_BHSC, k_BKTC, v_BKTC, mask_ST, rule, sinks_H)


def own_tokens(context: int, parts: int, part: int, *, causal: bool) -> Tensor:
    """Return the positions that one of `parts` processes computes."""
    if not causal:
        return torch.arange(context).chunk(parts)[part]
    pieces = torch.arange(context).chunk(2 * parts)
    return torch.cat((pieces[part], pieces[2 * parts - 1 - part]))


def gather_tokens(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All-gather tokens along dimension 3; the backward pass reduces gradients to the owner of each token."""
    gathered: Tensor = _Gather.apply(own, group)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """`gather_tokens` with its gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts, dim=3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        summed = grads[0].contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(ctx.group.size(), dim=3)[ctx.group.rank()].contiguous(), None
