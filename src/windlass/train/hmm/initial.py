"""Where Baum and Welch begin. They only climb, so what they come to depends on it.

K states, V tokens.
"""

from __future__ import annotations

import numpy as np

from windlass.models.hmm.weights import Array, HmmWeights
from windlass.spec.job import Hmm
from windlass.train.hmm.classes import TokenPairs, classes_of, count_pairs
from windlass.train.hmm.text import HmmText

LOOSE = 0.3
"""Share of a state's emissions that go to all tokens by their frequency: what is 0 at first stays 0, and what
is small takes long to grow (docs/log.md)."""
SPREAD = 1.0
"""Shape of the random draws: 1 makes every distribution as likely as any other."""


def initial_weights(asked: Hmm, text: HmmText, vocabulary: int, seed: int) -> HmmWeights:
    """Return the first probabilities; the same for the same seed, wherever they are computed."""
    pairs = count_pairs(text, vocabulary)
    if asked.initial == "random":
        return random_start(pairs, asked.states, seed)
    return class_start(pairs, classes_of(pairs, asked.states, seed), asked.states)


def class_start(pairs: TokenPairs, class_V: Array, states: int) -> HmmWeights:
    """Let each state stand for a class of tokens and follow others as its tokens do."""
    frequency_V = _rows(pairs.seen_V + 1.0)
    emission_KV = np.zeros((states, len(class_V)))
    emission_KV[class_V, np.arange(len(class_V))] = frequency_V
    filled_K1 = emission_KV.sum(1, keepdims=True)
    own_KV = np.where(filled_K1 > 0, emission_KV / np.where(filled_K1 > 0, filled_K1, 1), frequency_V)
    transition_KK = np.ones((states, states))
    np.add.at(transition_KK, (class_V[pairs.first_P], class_V[pairs.second_P]), pairs.count_P)
    return HmmWeights(
        start_K=_rows(filled_K1[:, 0] + 1.0 / states),
        transition_KK=_rows(transition_KK),
        emission_KV=_rows((1 - LOOSE) * own_KV + LOOSE * frequency_V),
    )


def random_start(pairs: TokenPairs, states: int, seed: int) -> HmmWeights:
    """Draw states at random, each with tokens of about the frequencies of the text."""
    random = np.random.default_rng(seed)
    frequency_V = _rows(pairs.seen_V + 1.0)
    return HmmWeights(
        start_K=random.dirichlet(np.full(states, SPREAD)),
        transition_KK=random.dirichlet(np.full(states, SPREAD), states),
        emission_KV=_rows(random.gamma(SPREAD, size=(states, len(frequency_V))) * frequency_V + 1e-12),
    )


def _rows(table: Array) -> Array:
    """Let every row sum to 1."""
    result: Array = table / table.sum(-1, keepdims=True)
    return result
