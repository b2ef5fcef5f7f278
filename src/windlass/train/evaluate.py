"""Evaluates a model on held-out text.

Input: a way to batch_loss at a batch, and the validation part of a corpus. Output: loss in nats per token,
its exponential, and bits per byte, which alone is comparable between tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windlass.corpus.batches import read_windows, sample_count
from windlass.corpus.shards import TokenPart
from windlass.models.loss import IGNORED
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.train.objective import Objective

BATCH_TOKENS = 4096

Windows = NDArray[np.int64]
BatchLoss = Callable[[tuple[Tensor, Tensor]], Tensor]
"""Inputs and targets to the summed loss, or to this process's part of it."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, and its size."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    sequences: int


def evaluate(
    batch_loss: BatchLoss,
    part: TokenPart,
    objective: Objective,
    *,
    context: int,
    sequences: int | None = None,
    share: tuple[int, int] = (0, 1),
    add_up: Callable[[Tensor], Tensor] = lambda known: known,
    report: Report = silent,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Evaluate on the first `sequences` windows of `part`, or on all of them.

    With a `share` (index, number of shares) this process evaluates its part, and `add_up` sums the parts of
    all processes. All processes evaluate the same number of batches, empty ones if need be, because
    `batch_loss` may be collective.
    """
    total = min(sequences or (1 << 62), sample_count(len(part), context))
    which, shares = share
    batch = shares * max(1, BATCH_TOKENS // context)
    summed, seen = torch.zeros((), dtype=torch.float64), 0
    while seen < total and not stopped():
        windows = np.arange(seen, min(seen + batch, total), dtype=np.int64)
        summed += batch_loss(_batch(part, objective, windows[which::shares], context)).double().cpu()
        seen += len(windows)
        report(Progress("evaluate", seen * context, total * context, "tokens"))
    return measured(float(add_up(summed)), seen, part, objective, context)


def measured(
    summed: float, sequences: int, part: TokenPart, objective: Objective, context: int
) -> Evaluation:
    """Return the metrics for a loss summed over `sequences` sequences."""
    num_targets = sequences * objective.num_targets(context)
    loss = summed / max(1, num_targets)
    tokens_per_byte = part.tokens / max(1, part.text_bytes)
    return Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=loss * tokens_per_byte / math.log(2),
        tokens=num_targets,
        sequences=sequences,
    )


def _batch(part: TokenPart, objective: Objective, windows: Windows, context: int) -> tuple[Tensor, Tensor]:
    """Read windows; for none, return one window without targets."""
    some = windows if len(windows) else np.zeros(1, dtype=np.int64)
    example = objective.examples(read_windows(part, some, context), some)
    targets_BT = example.targets_BT if len(windows) else torch.full_like(example.targets_BT, IGNORED)
    return example.inputs_BT, targets_BT
