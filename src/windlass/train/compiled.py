"""The forward pass, compiled where the planner found that it pays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.train.record import Record

Forward = Callable[[Tensor], Tensor]


def build_forward(model: LanguageModel, record: Record, *, compile_it: bool) -> Forward:
    """Return tokens -> final states."""
    if not compile_it:
        return model
    record.tell("progress", keep=False, stage="compile", done=0, total=None, unit="")
    return _falling_back(torch.compile(model, fullgraph=True), model, record)


def _falling_back(fast: Forward, plain: LanguageModel, record: Record) -> Forward:
    """Use the plain model from the moment that the compiler fails (no C++ compiler, say)."""
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
        return plain(tokens_BT)

    return forward
