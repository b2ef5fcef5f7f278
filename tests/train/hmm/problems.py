"""Random problems for the tests of hidden Markov models."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.hmm.weights import HmmWeights


def random_weights(states: int, vocabulary: int, seed: int = 0) -> HmmWeights:
    random = np.random.default_rng(seed)

    def rows(*shape: int) -> NDArray[Any]:
        drawn = random.random(shape) + 0.05
        return drawn / drawn.sum(-1, keepdims=True)

    return HmmWeights(rows(states), rows(states, states), rows(states, vocabulary))


def random_tokens(count: int, length: int, vocabulary: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, vocabulary, (count, length))
