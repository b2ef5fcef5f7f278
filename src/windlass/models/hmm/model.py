"""A hidden Markov model for serving and evaluation: numpy, float32, no torch.

Its memory of the past is how likely each state is to emit the next token: the filter of Rabiner (1989,
section III.A), normalised at every token. Before any token that is `start`.

B sequences, T tokens, K states, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import CONFIG, check_manifest, read_config
from windlass.models.hmm.deterministic_matmul import Floats, product
from windlass.models.hmm.weights import HmmWeights, read_weights
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.shape import HmmShape

Ids = NDArray[np.integer[Any]]


def load(directory: Path) -> HiddenMarkov:
    """Load a model directory, checked byte by byte where it has a manifest."""
    check_manifest(directory)
    where = directory / CONFIG
    shape = shape_from_config(read_config(directory), str(where))
    if not isinstance(shape, HmmShape):
        raise BadInput(f"{where}: a {shape.family} model, not a hidden Markov model")
    weights = read_weights(directory)
    if (weights.states, weights.vocabulary) != (shape.states, shape.vocabulary):
        raise Damaged(
            f"{directory}: {weights.states} states and {weights.vocabulary} tokens in the tables, but"
            f" {shape.states} and {shape.vocabulary} in {CONFIG}"
        )
    return HiddenMarkov(shape, weights)


class HiddenMarkov:
    """A `Statistical` model whose states are distributions over hidden states."""

    def __init__(self, shape: HmmShape, weights: HmmWeights) -> None:
        self.shape, self.weights = shape, weights.astype(np.float32)
        self.state_size = shape.states
        self.state_dtype = np.dtype(np.float32)

    def first(self) -> Floats:
        start_K: Floats = self.weights.start_K
        return start_K.copy()

    def read(self, state_S: Floats, tokens_T: Ids) -> Floats:
        states_TK = np.empty((len(tokens_T), self.state_size), np.float32)
        state_1K = state_S[None]
        for position, token in enumerate(tokens_T):
            state_1K = self.step(state_1K, np.array([token]))
            states_TK[position] = state_1K[0]
        return states_TK

    def step(self, states_BS: Floats, tokens_B: Ids) -> Floats:
        return product(self.filtered(states_BS, tokens_B), self.weights.transition_KK)

    def filtered(self, states_BS: Floats, tokens_B: Ids) -> Floats:
        """Return the probability that each state emitted a token.

        A token that none of the states can emit says nothing about them.
        """
        emitted_BK = np.ascontiguousarray(self.weights.emission_KV[:, tokens_B].T)
        largest_B1 = emitted_BK.max(1, keepdims=True)
        # Dividing by the largest keeps the product of a rare token within the range of float32.
        joint_BK = states_BS * (emitted_BK / np.where(largest_B1 > 0, largest_B1, np.float32(1)))
        total_B1 = joint_BK.sum(1, keepdims=True)
        possible_B1 = total_B1 > 0
        filtered_BK: Floats = np.where(possible_B1, joint_BK, states_BS)
        filtered_BK /= np.where(possible_B1, total_B1, np.float32(1))
        return filtered_BK

    def scores(self, states_BS: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            scores_BV: Floats = np.log(product(states_BS, self.weights.emission_KV))
        return scores_BV

    def vectors(self, states_BS: Floats) -> Floats:
        """Return the distribution over hidden states: texts that continue alike are near each other."""
        return states_BS.astype(np.float32)

    def logprobs(self, inputs_BT: Ids, targets_BT: Ids) -> NDArray[np.float64]:
        result_BT = np.empty(inputs_BT.shape, np.float64)
        states_BK = np.repeat(self.first()[None], len(inputs_BT), axis=0)
        for position, (tokens_B, targets_B) in enumerate(zip(inputs_BT.T, targets_BT.T, strict=True)):
            states_BK = self.step(states_BK, tokens_B)
            emitted_BK = np.ascontiguousarray(self.weights.emission_KV[:, targets_B].T, dtype=np.float64)
            result_BT[:, position] = (states_BK * emitted_BK).sum(1)
        with np.errstate(divide="ignore"):
            return np.log(result_BT)

    def sample(
        self, count: int, random: np.random.Generator, state_S: Floats | None = None
    ) -> tuple[Ids, Ids]:
        """Sample `count` tokens from a state; return them and the states that emitted them."""
        states_T, tokens_T = np.empty(count, np.int64), np.empty(count, np.int64)
        expected_K = self.first() if state_S is None else state_S
        for position in range(count):
            state = _drawn(expected_K, random)
            states_T[position], tokens_T[position] = state, _drawn(self.weights.emission_KV[state], random)
            expected_K = self.weights.transition_KK[state]
        return tokens_T, states_T


def _drawn(chances: Floats, random: np.random.Generator) -> int:
    """Draw from chances that sum to 1 but for rounding."""
    cumulative = np.cumsum(chances, dtype=np.float64)
    return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))
