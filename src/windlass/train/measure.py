"""Evaluates a saved model on a corpus, for `windlass eval`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from windlass.corpus.built import load_corpus
from windlass.models.huggingface import load_model
from windlass.models.language import LanguageModel
from windlass.models.loss import summed_loss
from windlass.parallel.device import place_process
from windlass.plan.local.machine import usable_cores
from windlass.spec.door import emit
from windlass.spec.errors import BadInput
from windlass.spec.job import Machine
from windlass.train.evaluate import evaluate
from windlass.train.objective import Causal, Masked

MASK_SEED, MASK_SHARE = 1, 0.15


def measure_model(
    path: Path, corpus_path: Path, sequences: int | None, context: int | None, threads: int | None
) -> int:
    """Measure and emit the result."""
    device = place_process(Machine(), threads or usable_cores())
    model = load_model(path, dtype=torch.float32, device=device).eval()
    corpus = load_corpus(corpus_path)
    known, used = model.shape.vocabulary, corpus.tokenizer.vocabulary
    if used > known:
        raise BadInput(
            f"{corpus_path}: its tokenizer has {used} tokens, but the model knows {known}",
            hint="build the corpus with the model's own tokenizer",
        )
    mask = corpus.tokenizer.mask_id
    if not model.causal and mask is None:
        raise BadInput(f"{corpus_path}: its tokenizer has no mask token, which this model is measured with")
    objective = (
        Causal()
        if model.causal or mask is None
        else Masked(MASK_SEED, MASK_SHARE, mask, model.shape.vocabulary)
    )
    result = evaluate(
        lambda batch: _look(model, batch, device),
        corpus.validation,
        objective,
        context=min(context or model.shape.context, model.shape.context),
        sequences=sequences,
        report=lambda p: emit(
            {"event": "progress", "stage": p.stage, "done": p.done, "total": p.total, "unit": p.unit}
        ),
    )
    emit({"done": {**asdict(result), "model": str(path), "corpus": str(corpus_path)}})
    return 0


@torch.inference_mode()
def _look(model: LanguageModel, batch: tuple[Tensor, Tensor], device: torch.device) -> Tensor:
    inputs_BT, targets_BT = batch
    return summed_loss(model, model(inputs_BT.to(device)), targets_BT.to(device))
