"""Measures the cost of one layer, the embedding and the head on this device, to balance a partition."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from windlass.models.build import build
from windlass.models.loss import summed_loss
from windlass.parallel.partition import LayerCosts
from windlass.spec.shape import Network

REPEATS = 3


def measured_costs(shape: Network, sequences: int, device: torch.device) -> LayerCosts:
    """Return the seconds of a forward and a backward pass over `sequences`, the best of a few."""
    model = build(shape.model_copy(update={"layers": 1}), seed=1, device=device)
    tokens_BT = torch.zeros(sequences, shape.context, dtype=torch.int64, device=device)
    x_BTD = torch.randn(sequences, shape.context, shape.width, device=device, requires_grad=True)
    return LayerCosts(
        layer=_best(lambda: model.through(x_BTD, shape.context).sum(), device),
        embedding=_best(lambda: model.embed(tokens_BT).sum(), device),
        head=_best(lambda: summed_loss(model, model.finish(x_BTD), tokens_BT), device),
    )


def _best(forward: Callable[[], Tensor], device: torch.device) -> float:
    """Return the shortest of several passes: noise only slows a pass down, and the first one warms up."""
    seconds = []
    for _ in range(1 + REPEATS):
        begin = time.perf_counter()
        forward().backward()  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
