"""Evaluates a hidden Markov model on held-out text."""

from __future__ import annotations

import torch
from torch import Tensor

from windlass.corpus.shards import TokenPart
from windlass.models.hmm.model import HiddenMarkov
from windlass.spec.protocol.progress import Report, silent
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.objective import Causal


def evaluate_model(
    model: HiddenMarkov, part: TokenPart, sequences: int | None, report: Report = silent
) -> Evaluation:
    """Evaluate on the first `sequences` windows of a part (default: all), with the code used for every
    family."""

    def batch_loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tensor(-model.logprobs(*(ids.numpy() for ids in batch)).sum())

    return evaluate(
        batch_loss, part, Causal(), context=model.shape.context, sequences=sequences, report=report
    )
