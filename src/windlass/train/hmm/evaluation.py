"""How good a hidden Markov model is on text that it has not seen."""

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
    """Measure on the first `sequences` windows of a part, or on all of them, as every family is measured."""

    def look(batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tensor(-model.logprobs(*(ids.numpy() for ids in batch)).sum())

    return evaluate(look, part, Causal(), context=model.shape.context, sequences=sequences, report=report)
