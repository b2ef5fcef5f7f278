"""Verifies a checkpoint of a hidden Markov run, for train.checkpoint_verify.

The loss of its probabilities must equal the one in the journal: that of an evaluation at that step, or that
of the next iteration, which is the loss of exactly these probabilities on the whole training text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.hmm.model import HiddenMarkov
from windlass.models.hmm.weights import HmmWeights
from windlass.spec.run import JOURNAL, Run
from windlass.spec.shape import HmmShape
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.hmm.checkpoints import load_checkpoint
from windlass.train.hmm.report import evaluate_hmm
from windlass.train.hmm.sweep import sweep
from windlass.train.hmm.text import text_of_corpus

TOLERANCE = 1e-5
"""Relative, of the loss; other processors round differently."""
FEW_SEQUENCES = 4


@dataclass(frozen=True)
class RecordedLoss:
    """A recomputed loss, and the one in the journal (None if there is none)."""

    step: int
    loss: float
    expected: float | None
    what: str

    @property
    def ok(self) -> bool:
        if self.expected is None:
            return math.isfinite(self.loss)
        return abs(self.loss - self.expected) <= TOLERANCE * abs(self.expected)


def hold(folder: Path, run: Run, path: Path) -> RecordedLoss:
    """Load a checkpoint, verifying every byte, and recompute the loss that the journal has."""
    assert isinstance(run.shape, HmmShape)
    weights, state = load_checkpoint(path)
    evaluation = following = None
    for record in Journal(StoreDir(folder), JOURNAL).read():
        if record.get("event") == "evaluation" and record.get("step") == state.step:
            evaluation = record
        elif record.get("event") == "step" and record.get("step") == state.step + 1:
            following = record
    if evaluation is None and following is not None:
        expected = float(following["loss"])
        return RecordedLoss(state.step, _training_loss(run, weights), expected, f"step {state.step + 1}")
    sequences = int(evaluation["sequences"]) if evaluation else FEW_SEQUENCES
    model = HiddenMarkov(run.shape, weights)
    loss = evaluate_hmm(model, load_corpus(Path(run.corpus)).validation, sequences).loss
    return RecordedLoss(state.step, loss, float(evaluation["loss"]) if evaluation else None, "the evaluation")


def _training_loss(run: Run, weights: HmmWeights) -> float:
    text = text_of_corpus(load_corpus(Path(run.corpus)), run.shape.context)
    tally = sweep(weights, text, threads=torch.get_num_threads(), dtype=torch.float32)
    assert tally is not None
    return -tally.counts().log_likelihood / text.tokens
