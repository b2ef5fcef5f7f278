"""Cross-entropy without holding the logits of a whole batch.

Legend: B batch, T time, N = B * T tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from windlass.models.language import LanguageModel

IGNORED = -100
"""The target of a token that does not count in the loss."""
CHUNK_TOKENS = 512
"""Logits of 512 tokens at a time stay in a CPU's last-level cache; those of a whole batch do not."""
_CHUNK = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_TOKENS)


def summed_loss(model: LanguageModel, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy of the model's final states against the targets."""
    x_ND, targets_N = x_BTD.flatten(0, 1), targets_BT.flatten()
    if model.logit_softcap is not None:
        return _capped_loss(model, x_ND, targets_N)
    return F.linear_cross_entropy(
        model.features(x_ND),
        model.output_weight,
        targets_N,
        linear_bias=model.output_bias,
        ignore_index=IGNORED,
        reduction="sum",
        options=_CHUNK,
    )


def _capped_loss(model: LanguageModel, x_ND: Tensor, targets_N: Tensor) -> Tensor:
    """The same for logits that are capped, recomputed in the backward pass chunk by chunk."""
    total = x_ND.new_zeros((), dtype=torch.float32)
    for x_CD, targets_C in zip(
        torch.split(x_ND, CHUNK_TOKENS), torch.split(targets_N, CHUNK_TOKENS), strict=True
    ):
        total = total + checkpoint(_chunk_loss, model, x_CD, targets_C, use_reentrant=False)
    return total


def _chunk_loss(model: LanguageModel, x_CD: Tensor, targets_C: Tensor) -> Tensor:
    logits_CV = model.logits(x_CD).float()
    return F.cross_entropy(logits_CV, targets_C, ignore_index=IGNORED, reduction="sum")
