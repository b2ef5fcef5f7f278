"""The interface of models whose whole memory of the past is a few numbers after each token.

An n-gram model needs the last tokens, a hidden Markov model the distribution over its states, a feed-forward
model its window. The engine keeps such a state per token where it keeps the KV cache of a transformer, so
prefix sharing, moving requests and speculative decoding work alike.

Legend: B sequences, T tokens, S numbers of a state, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import CONFIG, read_config
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.shape import HmmShape, MlpShape, NgramShape

Ids = NDArray[np.integer[Any]]
States = NDArray[Any]
Scores = NDArray[np.float32]


class Statistical(Protocol):
    """Tokens in, log-probabilities out. No row of a result depends on the others, to the bit."""

    state_size: int
    state_dtype: np.dtype[Any]

    @property
    def shape(self) -> NgramShape | HmmShape | MlpShape: ...

    def first(self) -> States:
        """Return the state (S,) before any token."""

    def read(self, state_S: States, tokens_T: Ids) -> States:
        """Return the state (T, S) after each token of one sequence."""

    def step(self, states_BS: States, tokens_B: Ids) -> States:
        """Return the states (B, S) after one more token of each sequence, the same bits as `read` gives."""

    def scores(self, states_BS: States) -> Scores:
        """Return the log-probability (B, V) of every token that could be next."""

    def logprobs(self, inputs_BT: Ids, targets_BT: Ids) -> NDArray[np.float64]:
        """Return the log-probability (B, T) of each target after the inputs up to its place, from `first`."""


@runtime_checkable
class Embedded(Protocol):
    """A Statistical that embeds its states in a vector space, in which similar states are near."""

    def vectors(self, states_BS: States) -> NDArray[np.float32]:
        """Return a vector (B, D) of each state; the mean over a text is its embedding."""


def load_statistical(directory: Path, threads: int | None = None) -> Statistical:
    """Load a model of any of these families, checked byte by byte where a manifest is.

    `threads` is how many may compute; all cores if left out. They change no bit.
    """
    where = str(directory / CONFIG)
    match shape_from_config(read_config(directory), where):
        case NgramShape():
            from windlass.models.ngram import load as load_ngram

            return load_ngram(directory, threads=threads or 0)
        case HmmShape():
            from windlass.models.hmm import load as load_hmm

            return load_hmm(directory)
        case MlpShape():
            from windlass.models.mlp_numpy import load as load_mlp

            return load_mlp(directory, threads)
        case shape:
            raise BadInput(f"{where}: a {shape.family} model needs more of the past than a state")
