"""How good a model is on text that it has not seen.

Input: a model and the validation part of a corpus. Output: loss in nats per token, its exponential,
and bits per byte, which alone is comparable between tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from windlass.corpus.batches import read_windows, sample_count
from windlass.corpus.shards import TokenPart
from windlass.models.language import LanguageModel
from windlass.spec.progress import Progress, Report, silent
from windlass.train.objective import Objective, summed_loss

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and on how much."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    sequences: int


def evaluate(
    model: LanguageModel,
    part: TokenPart,
    objective: Objective,
    *,
    context: int,
    sequences: int | None = None,
    report: Report = silent,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Measure on the first `sequences` windows of `part`, or on all of them."""
    total = min(sequences or (1 << 62), sample_count(len(part), context))
    batch = max(1, BATCH_TOKENS // context)
    summed, asked, seen = 0.0, 0, 0
    device = next(model.parameters()).device
    with torch.inference_mode():
        while seen < total and not stopped():
            windows = np.arange(seen, min(seen + batch, total), dtype=np.int64)
            example = objective.examples(read_windows(part, windows, context), windows)
            x_BTD = model(example.inputs_BT.to(device))
            summed += float(summed_loss(model, x_BTD, example.targets_BT.to(device)))
            asked += example.asked
            seen += len(windows)
            report(Progress("evaluate", seen * context, total * context, "tokens"))
    loss = summed / max(1, asked)
    tokens_per_byte = part.tokens / max(1, part.text_bytes)
    return Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=loss * tokens_per_byte / math.log(2),
        tokens=asked,
        sequences=seen,
    )
