"""From tokens to the summed loss, compiled as one graph where the planner found that it pays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.train.objective import summed_loss
from windlass.train.record import Record

Loss = Callable[[Tensor, Tensor], Tensor]
"""Tokens and targets, both (B, T), to the sum of the losses."""


def build_loss(model: LanguageModel, record: Record, *, compile_it: bool) -> Loss:
    """Return the function whose gradient training follows."""

    def plain(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return summed_loss(model, model(tokens_BT), targets_BT)

    if not compile_it:
        return plain
    record.tell("progress", keep=False, stage="compile", done=0, total=None, unit="")
    return _falling_back(torch.compile(plain, fullgraph=True), plain, record)


def _falling_back(fast: Loss, plain: Loss, record: Record) -> Loss:
    """Use the plain function from the moment that the compiler fails (no C++ compiler, say)."""
    works = True

    def loss(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        nonlocal works
        if works:
            try:
                return fast(tokens_BT, targets_BT)
            except torch._dynamo.exc.TorchDynamoException as error:
                works = False
                reason = str(error).strip().splitlines()[0]
                record.tell("warning", message=f"torch.compile failed, going on without it: {reason}")
        return plain(tokens_BT, targets_BT)

    return loss
