"""Turns gradients into new weights: AdamW, clipping, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from windlass.parallel.param_shard import ParamShard
from windlass.spec.job import Train
from windlass.spec.run import Run


def build_optimizer(holdings: Sequence[ParamShard], run: Run) -> torch.optim.AdamW:
    """Build AdamW with weight decay for matrices but not for vectors (norms, biases)."""
    train, held = run.job.train, [h for h in holdings if h.tensor.numel()]
    return torch.optim.AdamW(
        [
            {"params": [h.tensor for h in held if len(h.shape) >= 2], "weight_decay": train.weight_decay},
            {"params": [h.tensor for h in held if len(h.shape) < 2], "weight_decay": 0.0},
        ],
        lr=run.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def rate_of(run: Run, step: int) -> float:
    """Return the learning rate of the step after `step` finished steps."""
    share = rate_share(
        step, steps=run.steps, warmup=run.warmup_steps, schedule=run.job.train.schedule, train=run.job.train
    )
    return run.learning_rate * share


def rate_share(
    step: int, *, steps: int, warmup: int, schedule: Literal["cosine", "wsd", "constant"], train: Train
) -> float:
    """Return the rate as a share of the peak: linear warm-up, then the schedule."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        decay_from = max(warmup, steps - max(1, round(train.decay_share * steps)))
        if step < decay_from:
            return 1.0
        gone = (step - decay_from) / max(1, steps - decay_from)
        return 1.0 + (train.final_share - 1.0) * gone
    gone = min(1.0, (step - warmup) / max(1, steps - warmup))
    return train.final_share + (1.0 - train.final_share) * 0.5 * (1.0 + math.cos(math.pi * gone))
