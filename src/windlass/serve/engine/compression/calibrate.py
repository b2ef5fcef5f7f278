"""Measures the inputs of a model's matrices on sample text, for calibrated quantisation.

Input: a model and windows of tokens. Output: for each matrix the mean of x xᵀ over its inputs x.

Legend: B windows, T tokens of a window, K columns of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from windlass.corpus.batches import read_windows, sample_count
from windlass.corpus.shards import TokenPart
from windlass.models.language import LanguageModel

Moments = NDArray[np.float64]

TOKENS = 8192
AT_ONCE = 8
SHARED = {"key": "query", "value": "query", "up": "gate"}
"""Matrices that have the same input as another matrix of their module, if the family has that one."""


def sampled_windows(part: TokenPart, context: int) -> NDArray[np.int64]:
    """Read windows spread evenly over a text, (B, T)."""
    there = sample_count(len(part), context)
    wanted = max(1, min(there, TOKENS // context))
    return read_windows(part, np.linspace(0, there - 1, wanted, dtype=np.int64), context)[:, :-1]


@torch.inference_mode()
def second_moments(
    model: LanguageModel, tokens_BT: NDArray[np.int64], names: Iterable[str]
) -> dict[str, Moments | None]:
    """Return the second moments of the inputs of each named matrix ("layers.0.ffn.up.weight").

    An expert that no token was sent to has none.
    """
    sources = {name: _source(model, name) for name in names}
    found = {source: _Sum(model.get_submodule(source)) for source in set(sources.values())}
    for start in range(0, len(tokens_BT), AT_ONCE):
        model(torch.from_numpy(tokens_BT[start : start + AT_ONCE]))
    means = {source: total.close() for source, total in found.items()}
    return {name: means[source] for name, source in sources.items()}


def _source(model: LanguageModel, name: str) -> str:
    """Return the module whose inputs are those of a matrix."""
    module = name.removesuffix(".weight")
    part, _, last = module.rpartition(".")
    other = SHARED.get(last, last)
    is_there = getattr(model.get_submodule(part), other, None) is not None
    return f"{part}.{other}" if is_there else module


class _Sum:
    """Sums x xᵀ over all inputs of a module."""

    def __init__(self, module: nn.Module) -> None:
        self._total_KK: Tensor | None = None
        self._seen = 0
        self._hook = module.register_forward_pre_hook(self._add)

    def _add(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        x_MK = inputs[0].flatten(0, -2)
        square_KK = (x_MK.T @ x_MK).double()
        self._total_KK = square_KK if self._total_KK is None else self._total_KK + square_KK
        self._seen += len(x_MK)

    def close(self) -> Moments | None:
        self._hook.remove()
        if not self._seen:
            return None
        assert self._total_KK is not None
        mean: Moments = (self._total_KK / self._seen).numpy()
        return mean
