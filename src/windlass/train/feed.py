"""Which samples a replica computes in a step, as batches that the model reads.

Input: the number of samples used so far. Output: this replica's share of the next ones, in micro-batches.
The data's whole state is that number, whatever the layout was before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from windlass.corpus.batches import divided, read_batch, sample_count, windows_at
from windlass.corpus.built import BuiltCorpus
from windlass.spec.errors import BadInput
from windlass.spec.run import Run
from windlass.train.objective import Causal, Masked, Objective

Positions = NDArray[np.int64]


class Feed:
    """The samples of one replica among several."""

    def __init__(self, run: Run, corpus: BuiltCorpus, replica: int) -> None:
        self._run, self._corpus, self._replica = run, corpus, replica
        self.objective = build_objective(run, corpus)
        weights = run.layout.shares or (1,) * run.layout.replicas
        self.weights = weights

    def batches(self, samples: int) -> list[tuple[Tensor, Tensor]]:
        """Read this replica's part of the step that follows `samples` used ones."""
        run, positions = self._run, self.positions(samples)
        tokens = read_batch(self._corpus.train, positions, context=run.shape.context, seed=run.job.seed)
        micro = run.micro_batch_sequences
        self._look_ahead(samples + run.batch_sequences)
        examples = [
            self.objective.examples(tokens[i : i + micro], positions[i : i + micro])
            for i in range(0, len(positions), micro)
        ]
        return [(example.inputs_BT, example.targets_BT) for example in examples]

    def positions(self, samples: int) -> Positions:
        """Return the global positions of this replica's samples."""
        share = divided(samples, self._run.batch_sequences, self.weights)[self._replica]
        return np.arange(share.start, share.stop, dtype=np.int64)

    def asked(self, *, of_replicas: int) -> int:
        """Return how many answers a step asks for, of so many replicas that add up what they learn."""
        run = self._run
        sequences = run.batch_sequences * of_replicas // run.layout.replicas
        return sequences * self.objective.asked_of(run.shape.context)

    def _look_ahead(self, samples: int) -> None:
        """Let shards of the next step be fetched while this one computes."""
        part, context = self._corpus.train, self._run.shape.context
        windows = windows_at(self.positions(samples), sample_count(len(part), context), self._run.job.seed)
        part.expect(windows, context)


def build_objective(run: Run, corpus: BuiltCorpus) -> Objective:
    if run.objective == "causal":
        return Causal()
    mask = corpus.tokenizer.mask_id
    if mask is None:
        raise BadInput(
            "this tokenizer has no mask token, so nothing can be masked",
            hint="use a tokenizer.json with a [MASK] or <|mask|> token, or another model family",
        )
    return Masked(run.job.seed, run.job.train.mask_share, mask, corpus.tokenizer.vocabulary)
