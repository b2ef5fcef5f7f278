"""Cross-entropy without holding the logits of a whole batch.

Legend: B batch, T time, N = B * T tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from windlass.models.language import LanguageModel

IGNORED = -100
"""The target of a token that does not count in the loss."""
CHUNK_TOKENS = 512
"""Logits of 512 tokens at a time stay in a CPU's last-level cache; those of a whole batch do not."""
_CHUNK = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_TOKENS)


def summed_loss(model: LanguageModel, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy of the model's final states against the targets."""
    x_ND, targets_N = x_BTD.flatten(0, 1), targets_BT.flatten()
    return F.linear_cross_entropy(
        model.features(x_ND),
        model.output_weight,
        targets_N,
        linear_bias=model.output_bias,
        ignore_index=IGNORED,
        reduction="sum",
        options=_CHUNK,
    )
