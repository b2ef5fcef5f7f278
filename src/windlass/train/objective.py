"""Training objectives: what the model must predict.

Input: sequences of context + 1 tokens. Output: inputs, targets, and the number of targets: losses are summed
and divided by that number, because only sums add up exactly over micro-batches and processes.

Legend: B batch, T time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windlass.models.loss import IGNORED

SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1
"""Of the masked tokens, 80% are hidden, 10% replaced, 10% left (Devlin et al. 2018, arXiv:1810.04805)."""


@dataclass(frozen=True)
class Example:
    """Inputs and targets; targets are IGNORED where nothing is predicted."""

    inputs_BT: Tensor
    targets_BT: Tensor
    num_targets: int


class Objective(Protocol):
    """Turns sequences into examples. Any randomness is a function of the sample's position."""

    def examples(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Example: ...

    def num_targets(self, context: int) -> int:
        """Return the number of targets of one sequence, which is the same for every sequence."""


class Causal:
    """Predict each token from those before it."""

    def examples(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Example:
        tokens_BS = torch.from_numpy(tokens)
        inputs_BT, targets_BT = tokens_BS[:, :-1], tokens_BS[:, 1:]
        return Example(inputs_BT.contiguous(), targets_BT.contiguous(), targets_BT.numel())

    def num_targets(self, context: int) -> int:
        return context


@dataclass(frozen=True)
class Masked:
    """Predict masked tokens from both sides."""

    seed: int
    share: float
    mask_token: int
    vocabulary: int

    def examples(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Example:
        inputs = tokens[:, :-1].copy()
        targets = np.full_like(inputs, IGNORED)
        for row, position in enumerate(positions):
            self._hide(inputs[row], targets[row], int(position))
        num_targets = int((targets != IGNORED).sum())
        return Example(torch.from_numpy(inputs), torch.from_numpy(targets), num_targets)

    def num_targets(self, context: int) -> int:
        return max(1, round(self.share * context))

    def _hide(self, inputs: NDArray[np.int64], targets: NDArray[np.int64], position: int) -> None:
        rng = np.random.Generator(np.random.Philox(key=[self.seed, position]))
        count = self.num_targets(len(inputs))
        chosen = rng.permutation(len(inputs))[:count]
        targets[chosen] = inputs[chosen]
        fate = rng.random(count)
        inputs[chosen[fate < SHOWN_AS_MASK]] = self.mask_token
        replaced = chosen[fate >= 1 - SHOWN_AS_RANDOM]
        inputs[replaced] = rng.integers(0, self.vocabulary, len(replaced))
