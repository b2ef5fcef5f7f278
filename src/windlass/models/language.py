"""The interface of every model family, for training and serving.

Legend: B batch, T time (tokens of a sequence), D width of the residual stream, V vocabulary,
H query heads, K key/value heads, C width of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.models.attention import PLAIN, AttentionRule
from windlass.spec.shape import Network


class KeyValues(Protocol):
    """The KV cache, which the caller of the model owns.

    The owner knows which row of the batch belongs to which sequence, so it also computes the attention:
    it stores the keys and values of the given tokens and attends to what each query may see.
    """

    def attend(
        self,
        layer: int,
        q_BHTC: Tensor,
        k_BKTC: Tensor,
        v_BKTC: Tensor,
        rule: AttentionRule = PLAIN,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output, shaped as the queries."""


class LanguageModel(nn.Module, ABC):
    """Tokens in, final hidden states out; logits are one matrix product further.

    The product with the output matrix is left to the caller, because a loss need not hold the logits of
    all tokens at once and a sampler needs those of the last token only.
    """

    causal: ClassVar[bool] = True
    """Whether a token sees only those before it, and so whether the model can continue a text."""

    residual: ClassVar[tuple[str, ...]] = ()
    """Names of the matrices that write into the residual stream; `build` makes them smaller."""

    entry: ClassVar[tuple[str, ...]] = ("embedding",)
    """The modules that `embed` needs."""
    exit: ClassVar[tuple[str, ...]] = ()
    """The modules that `finish` and `logits` need, apart from a tied output matrix."""

    shape: Network
    layers: nn.ModuleDict
    """The blocks by number; a process that computes some of them holds only those."""

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Return x_BTD, after the last norm.

        Positions count from 0 when left out. `key_mask_BT` is True for tokens that may be looked at and
        False for padding. With a cache, attention is the cache's.
        """
        x_BTD = self.embed(tokens_BT, positions_BT)
        x_BTD = self.through(x_BTD, tokens_BT.shape[1], positions_BT, cache, key_mask_BT)
        return self.finish(x_BTD)

    @abstractmethod
    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Return the input of the first layer."""

    @abstractmethod
    def through(
        self,
        x_BTD: Tensor,
        length: int,
        positions_BT: Tensor | None = None,
        cache: KeyValues | None = None,
        key_mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Run the layers of this process. `length` is T as attention sees it: x_BTD may hold fewer tokens
        where several processes divide them."""

    def finish(self, x_BTD: Tensor) -> Tensor:
        """Return the final states, from the output of the last layer."""
        return x_BTD

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """The output matrix (V, D)."""

    @property
    def output_bias(self) -> Tensor | None:
        """The bias of the logits (V), if any."""
        return None

    def features(self, x_BTD: Tensor) -> Tensor:
        """Return the input of the output matrix."""
        return x_BTD

    @property
    def logit_softcap(self) -> float | None:
        """The bound that logits approach through a tanh, if any."""
        return None

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return the logits of all tokens of the vocabulary."""
        return capped(
            F.linear(self.features(x_BTD), self.output_weight, self.output_bias), self.logit_softcap
        )

    def place_tables(self, device: torch.device) -> None:
        """Compute the buffers that are derived from the shape and not stored with the weights.

        For a model built without memory (device "meta"), call this after setting its weights.
        """

    @property
    def parameter_count(self) -> int:
        """Number of trained weights; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Bound logits smoothly (Gemma 2, arXiv:2408.00118, section 2)."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
