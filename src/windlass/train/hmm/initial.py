"""Initial probabilities for Baum-Welch, which finds a local optimum that depends on them.

K states, V tokens.
"""

from __future__ import annotations

import numpy as np

from windlass.models.hmm.weights import Array, HmmWeights
from windlass.spec.job import Hmm
from windlass.train.hmm.classes import TokenPairs, classes_of, count_pairs
from windlass.train.hmm.text import HmmText

LOOSE = 0.3
"""Share of a state's emissions that is spread over all tokens by frequency: a probability of 0 stays 0, and a
small one takes long to grow (docs/log.md)."""
SPREAD = 1.0
"""Shape of the random draws: 1 makes every distribution equally likely."""


def initial_weights(config: Hmm, text: HmmText, vocabulary: int, seed: int) -> HmmWeights:
    """Return the initial probabilities; the same seed gives the same bits on every machine."""
    pairs = count_pairs(text, vocabulary)
    if config.initial == "random":
        return random_start(pairs, config.states, seed)
    return class_start(pairs, classes_of(pairs, config.states, seed), config.states)


def class_start(pairs: TokenPairs, class_V: Array, states: int) -> HmmWeights:
    """Make each state a class of tokens; transitions follow the bigrams between classes."""
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
    """Normalise every row to sum to 1."""
    result: Array = table / table.sum(-1, keepdims=True)
    return result
