"""The most likely states of a text: the algorithm of Viterbi (1967), in log space.

K states, T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.hmm.weights import HmmWeights

Ids = NDArray[np.integer[Any]]


def best_path(weights: HmmWeights, tokens_T: Ids) -> tuple[Ids, float]:
    """Return the most likely sequence of states, and its log-probability with the tokens.

    A token that no state emits (not seen in training, without smoothing) changes neither.
    """
    if not len(tokens_T):
        return np.empty(0, np.int64), 0.0
    with np.errstate(divide="ignore"):
        start_K, transition_KK = np.log(weights.start_K), np.log(weights.transition_KK)
        emitted_TK = np.log(weights.emission_KV[:, tokens_T].T)
    emitted_TK[np.isneginf(emitted_TK).all(1)] = 0.0
    came_from_TK = np.zeros((len(tokens_T), weights.states), np.int32)
    best_K = start_K + emitted_TK[0]
    arriving_KK = np.ascontiguousarray(transition_KK.T)
    for position in range(1, len(tokens_T)):
        ways_KK = arriving_KK + best_K
        came_from_TK[position] = ways_KK.argmax(1)
        best_K = np.take_along_axis(ways_KK, came_from_TK[position, :, None], 1)[:, 0] + emitted_TK[position]
    states_T = np.empty(len(tokens_T), np.int64)
    states_T[-1] = best_K.argmax()
    for position in reversed(range(1, len(tokens_T))):
        states_T[position - 1] = came_from_TK[position, states_T[position]]
    return states_T, float(best_K[states_T[-1]])
