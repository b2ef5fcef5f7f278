"""From tokens to the summed loss; the model is compiled where the planner found that it pays.

The loss itself stays outside: torch's chunked one cannot be part of a graph, and needs no fusing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.train.objective import summed_loss
from windlass.train.record import Record

Forward = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Tokens and targets, both (B, T), to the sum of the losses."""


def build_loss(model: LanguageModel, record: Record, *, compile_it: bool) -> Loss:
    """Return the function whose gradient training follows."""
    forward: Forward = _compiled(model, record) if compile_it else model

    def loss(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return summed_loss(model, forward(tokens_BT), targets_BT)

    return loss


def _compiled(model: LanguageModel, record: Record) -> Forward:
    """Return the compiled model, or rather the plain one from the moment that the compiler fails."""
    record.tell("progress", keep=False, stage="compile", done=0, total=None, unit="")
    fast = torch.compile(model, fullgraph=True)
    works = True

    def forward(tokens_BT: Tensor) -> Tensor:
        nonlocal works
        if works:
            try:
                return fast(tokens_BT)
            except torch._dynamo.exc.TorchDynamoException as error:
                works = False
                reason = str(error).strip().splitlines()[0]
                record.tell("warning", message=f"torch.compile failed, going on without it: {reason}")
        return model(tokens_BT)

    return forward
