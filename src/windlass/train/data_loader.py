"""Loads the samples of a replica as micro-batches.

Input: the number of samples used so far. Output: this replica's share of the next batch, in micro-batches.
That number is the whole state of the data, whatever the layout was before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from windlass.corpus.batches import digest_of, divided, read_batch, sample_count, windows_at
from windlass.corpus.corpus_dir import BuiltCorpus
from windlass.spec.errors import BadInput
from windlass.spec.run import Run
from windlass.train.objective import Causal, Masked, Objective

Positions = NDArray[np.int64]


class DataLoader:
    """The samples of one replica.

    In a deterministic run the batch is divided among the job's replicas, however many processes there are:
    `parts` are those that this process computes, in order.
    """

    def __init__(
        self, run: Run, corpus: BuiltCorpus, replica: int, parts: Sequence[int] | None = None
    ) -> None:
        self._run, self._corpus = run, corpus
        self.objective = build_objective(run, corpus)
        self.parts = tuple(parts) if parts is not None else (replica,)
        layout = run.layout if parts is None else run.job.layout
        self.weights = layout.shares or (1,) * layout.replicas
        self.digest = 0
        """Digest of the positions read since the caller reset it to 0; see corpus.batches.digest_of."""

    def batches(self, samples: int, part: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """Read this replica's part of the batch that begins at position `samples`."""
        batches = self.read(self.positions(samples, part))
        self._prefetch(samples + self._run.batch_sequences, part)
        return batches

    def read(self, positions: Positions) -> list[tuple[Tensor, Tensor]]:
        """Read the samples at some positions, in micro-batches."""
        run = self._run
        tokens = read_batch(self._corpus.train, positions, context=run.network.context, seed=run.job.seed)
        self.digest += digest_of(positions)
        micro = run.micro_batch_sequences
        examples = [
            self.objective.examples(tokens[i : i + micro], positions[i : i + micro])
            for i in range(0, len(positions), micro)
        ]
        return [(example.inputs_BT, example.targets_BT) for example in examples]

    def follow(self, run: Run) -> None:
        """Continue with another micro-batch size."""
        self._run = run

    def positions(self, samples: int, part: int | None = None) -> Positions:
        """Return the global positions of this replica's samples."""
        place = self.parts[0] if part is None else part
        share = divided(samples, self._run.batch_sequences, self.weights)[place]
        return np.arange(share.start, share.stop, dtype=np.int64)

    def num_targets(self, *, of_replicas: int) -> int:
        """Return the number of targets of a step, over `of_replicas` replicas whose gradients are summed."""
        run = self._run
        sequences = run.batch_sequences * of_replicas // run.layout.replicas
        return sequences * self.objective.num_targets(run.network.context)

    def _prefetch(self, samples: int, part: int | None) -> None:
        """Prefetch the shards of the next step while this one computes."""
        text, context = self._corpus.train, self._run.shape.context
        count = sample_count(len(text), context)
        text.expect(windows_at(self.positions(samples, part), count, self._run.job.seed), context)


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
