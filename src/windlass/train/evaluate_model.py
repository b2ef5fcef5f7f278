"""Evaluates a saved model on a corpus, for `windlass eval`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.models.files import CONFIG, read_config
from windlass.models.huggingface import load_model
from windlass.models.language import LanguageModel
from windlass.models.loss import summed_loss
from windlass.models.quantised import without_quantisation
from windlass.models.recurrent_state import Statistical, load_statistical
from windlass.parallel.device import place_process
from windlass.plan.local.machine import usable_cores
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.job import MachineSpec
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.shape import HmmShape, MlpShape, NgramShape, Shape
from windlass.train.evaluate import BatchLoss, evaluate
from windlass.train.objective import Causal, Masked, Objective

MASK_SEED, MASK_SHARE = 1, 0.15


def measure_model(
    path: Path, corpus_path: Path, sequences: int | None, context: int | None, threads: int | None
) -> int:
    """Evaluate and emit the result."""
    corpus = load_corpus(corpus_path)
    shape, batch_loss, objective = _measured(path, corpus, threads)
    result = evaluate(
        batch_loss,
        corpus.validation,
        objective,
        context=min(context or shape.context, shape.context),
        sequences=sequences,
        report=lambda p: emit(
            {"event": "progress", "stage": p.stage, "done": p.done, "total": p.total, "unit": p.unit}
        ),
    )
    emit({"done": {**asdict(result), "model": str(path), "corpus": str(corpus_path)}})
    return 0


def _measured(path: Path, corpus: BuiltCorpus, threads: int | None) -> tuple[Shape, BatchLoss, Objective]:
    """Return a model's shape, its batch loss and its objective."""
    config, _ = without_quantisation(read_config(path), str(path / CONFIG))
    shape = shape_from_config(config, str(path / CONFIG))
    _check_vocabulary(shape, corpus)
    if isinstance(shape, MlpShape | NgramShape | HmmShape):
        counted = load_statistical(path)
        return shape, lambda batch: _statistical_loss(counted, batch), Causal()
    device = place_process(MachineSpec(), threads or usable_cores())
    model = load_model(path, dtype=torch.float32, device=device).eval()
    return shape, lambda batch: _network_loss(model, batch, device), _objective(model, corpus)


def _check_vocabulary(shape: Shape, corpus: BuiltCorpus) -> None:
    known, used = shape.vocabulary, corpus.tokenizer.vocabulary
    if used > known:
        raise BadInput(
            f"{corpus.path}: its tokenizer has {used} tokens, but the model knows {known}",
            hint="build the corpus with the model's own tokenizer",
        )


def _objective(model: LanguageModel, corpus: BuiltCorpus) -> Objective:
    if model.causal:
        return Causal()
    mask = corpus.tokenizer.mask_id
    if mask is None:
        raise BadInput(f"{corpus.path}: its tokenizer has no mask token, which this model is measured with")
    return Masked(MASK_SEED, MASK_SHARE, mask, model.shape.vocabulary)


def _statistical_loss(model: Statistical, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs_BT, targets_BT = (part.numpy() for part in batch)
    return torch.tensor(-model.logprobs(inputs_BT, targets_BT).sum(), dtype=torch.float64)


@torch.inference_mode()
def _network_loss(model: LanguageModel, batch: tuple[Tensor, Tensor], device: torch.device) -> Tensor:
    inputs_BT, targets_BT = batch
    return summed_loss(model, model(inputs_BT.to(device)), targets_BT.to(device))
