"""LoRA adapters of a torch model: a hook on each matrix adds the delta of the row's adapter.

Legend: T tokens of a step, r rank, K columns of a matrix, N its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from windlass.models.language import LanguageModel
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.runner import Span

Run = tuple[slice, int]
"""Rows that follow each other, and the adapter that they have in common."""


class TorchAdapters:
    """The adapters of one model. `begin` sets which rows of the next step use which."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._count = 0
        self._runs: list[Run] = []
        self._pairs: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def take(self, adapter: Adapter) -> int:
        """Load an adapter; return its number."""
        for weight, (down, up) in adapter.matrices.items():
            name = weight.removesuffix(".weight")
            if name not in self._pairs:
                self._pairs[name] = {}
                self._model.get_submodule(name).register_forward_hook(_Hook(self._pairs[name], self._runs))
            like = self._model.output_weight
            pair = torch.tensor(down).to(like), torch.tensor(up * adapter.scale).to(like)
            self._pairs[name][self._count] = pair
        self._count += 1
        return self._count - 1

    def begin(self, spans: Sequence[Span]) -> None:
        self._runs.clear()
        at = 0
        for span in spans:
            if span.adapter >= 0:
                self._runs.append((slice(at, at + len(span.tokens)), span.adapter))
            at += len(span.tokens)


class _Hook:
    """Adds the deltas to the output of one matrix (B = 1)."""

    def __init__(self, pairs: dict[int, tuple[Tensor, Tensor]], runs: list[Run]) -> None:
        self._pairs, self._runs = pairs, runs

    def __call__(self, _: nn.Module, taken: tuple[Tensor, ...], given_1TN: Tensor) -> Tensor:
        for rows, number in self._runs:
            if number in self._pairs:
                down_rK, up_Nr = self._pairs[number]
                given_1TN[0, rows] += taken[0][0, rows] @ down_rK.T @ up_Nr.T
        return given_1TN
