"""A context MLP: the vectors of the last few tokens, mixed by one matrix, through residual blocks.

Bengio et al. 2003, "A Neural Probabilistic Language Model"; the blocks are those of today (RMSNorm before
each, GELU, no biases), and the output matrix is the embedding's. A position sees its own token and the
window - 1 before it, and nothing else: what comes before the beginning of a sequence is a vector of zeros.

Legend: B batch, T time, W window, D width, V vocabulary, F inner width of a block.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.models.language import KeyValues, LanguageModel
from windlass.models.norms import RmsNorm
from windlass.spec.shape import MlpShape


class MlpModel(LanguageModel):
    """The whole model."""

    residual: ClassVar[tuple[str, ...]] = ("ffn.down.weight",)
    entry: ClassVar[tuple[str, ...]] = ("embedding", "mix")
    exit: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, shape: MlpShape) -> None:
        super().__init__()
        self.shape: MlpShape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.mix = nn.Linear(shape.window * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleDict({str(n): MlpBlock(shape) for n in range(shape.layers)})
        self.norm = RmsNorm(shape.width, shape.norm_epsilon)

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Mix the vectors of each window, oldest first; positions tell where sequences begin."""
        window = self.shape.window
        e_BSD = F.pad(self.embedding(tokens_BT), (0, 0, window - 1, 0))
        x_BTWD = e_BSD.unfold(1, window, 1).transpose(2, 3)
        if positions_BT is not None:
            back_W = torch.arange(window - 1, -1, -1, device=tokens_BT.device)
            x_BTWD = x_BTWD * (positions_BT[..., None] >= back_W)[..., None].to(x_BTWD.dtype)
        return self.mix(x_BTWD.flatten(2))

    def through(
        self,
        x_BTD: Tensor,
        length: int,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        for block in self.layers.values():
            x_BTD = block(x_BTD)
        return x_BTD

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight


class MlpBlock(nn.Module):
    """Feed-forward beside the residual stream."""

    def __init__(self, shape: MlpShape) -> None:
        super().__init__()
        self.ffn_norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.ffn = MlpFeedForward(shape)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class MlpFeedForward(nn.Module):
    """Two matrices with a GELU between them, in its tanh form."""

    def __init__(self, shape: MlpShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.gelu(self.up(x_BTD), approximate="tanh")
        return self.down(h_BTF)
