"""Compiles a model with torch.compile, and falls back to eager mode if that fails.

The loss is not compiled: torch's chunked loss cannot be part of a graph, and needs no fusing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.train.event_log import EventLog

Forward = Callable[[Tensor], Tensor]


def compiled(model: LanguageModel, record: EventLog) -> Forward:
    """Return the forward function of the compiled model; it uses the plain model once the compiler has
    failed."""
    record.emit("progress", keep=False, stage="compile", done=0, total=None, unit="")
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
                record.emit("warning", message=f"torch.compile failed, continuing without it: {reason}")
        return model(tokens_BT)

    return forward
