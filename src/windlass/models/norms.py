"""The norms of the model families.

Legend: B batch, T time, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from windlass.spec.model.decoder import DecoderShape


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


class OffsetRmsNorm(RmsNorm):
    """The same with a scale of 1 + weight, multiplied in float32, as Gemma was trained."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide_BTD = x_BTD.float()
        scale_BT1 = torch.rsqrt(wide_BTD.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide_BTD * scale_BT1 * (1.0 + self.weight.float())).to(x_BTD.dtype)


def norm_of(shape: DecoderShape, width: int) -> nn.Module:
    """Return a norm of the kind that a decoder has."""
    if shape.norm == "layer":
        return nn.LayerNorm(width, shape.norm_epsilon, bias=shape.norm_bias)
    return (OffsetRmsNorm if shape.norm_offset else RmsNorm)(width, shape.norm_epsilon)
