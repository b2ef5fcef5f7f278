"""The E-step of Baum-Welch for one block of sequences.

Input: the probabilities, and N sequences of T tokens. Output: how often each state is expected to begin a
sequence, to follow each other state, and to emit each token of the block; and the log-likelihood.

Forward and backward probabilities are scaled at every token (Rabiner 1989, section V.A), so no length
underflows, and emissions are divided by the largest of their token beforehand, so rare tokens do not either.
There is one forward and one backward pass, for all sequences of the block together; three matrix products
take most of the time. Nothing of size T x K x V is ever held.

K states, V tokens, N sequences, T positions, U different tokens in the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.models.hmm.weights import HmmWeights

BLOCK_NUMBERS = 1 << 21
"""Probabilities in each of the three tables of a block: 8 MiB in float32."""
MIN_SEQUENCES, MAX_SEQUENCES = 16, 1024
"""With fewer sequences matrix products are slow; more gain nothing."""


@dataclass(frozen=True)
class HmmTables:
    """The probabilities as the E-step reads them."""

    start_K: Tensor
    transition_KK: Tensor
    backward_KK: Tensor
    """The transposed transitions, computed once for all blocks."""
    emission_VK: Tensor
    """Emissions by token, each row divided by its largest."""
    log_scale_V: Tensor
    """Logarithms of the divisors, in float64."""


@dataclass(frozen=True)
class Expectation:
    """Expected counts of one block."""

    log_likelihood: float
    """Summed over the possible sequences."""
    impossible: int
    """Sequences of probability zero; nothing is learned from them."""
    start_K: Tensor
    transition_KK: Tensor
    tokens_U: Tensor
    emission_UK: Tensor


def block_sequences(states: int, length: int) -> int:
    """Return the number of sequences in a block.

    It depends on the model's sizes alone, not on workers or threads, so the blocks, and with them every
    rounded sum, are the same for any number of workers.
    """
    return max(MIN_SEQUENCES, min(MAX_SEQUENCES, BLOCK_NUMBERS // (states * length)))


def tables_of(weights: HmmWeights, dtype: torch.dtype) -> HmmTables:
    emission_VK = torch.from_numpy(weights.emission_KV).T
    largest_V = emission_VK.amax(1)
    transition_KK = torch.from_numpy(weights.transition_KK).to(dtype)
    return HmmTables(
        start_K=torch.from_numpy(weights.start_K).to(dtype),
        transition_KK=transition_KK,
        backward_KK=transition_KK.T.contiguous(),
        emission_VK=(emission_VK / torch.where(largest_V > 0, largest_V, 1.0)[:, None])
        .to(dtype)
        .contiguous(),
        log_scale_V=largest_V.log(),
    )


@torch.inference_mode()
def expect(tables: HmmTables, tokens_NT: Tensor) -> Expectation:
    """Return the expected counts of a block. Computed by one thread, so the bits are the same on every
    machine."""
    tokens_TN = tokens_NT.T.contiguous()
    weighed_TNK = tables.emission_VK[tokens_TN]
    forward_TNK, scale_TN1 = _forward(tables, weighed_TNK)
    possible_N1 = (scale_TN1 > 0).all(0)
    scale_TN1.masked_fill_(scale_TN1 <= 0, 1)
    weighed_TNK /= scale_TN1
    posterior_TNK = _backward(tables, forward_TNK, weighed_TNK, possible_N1)
    states = len(tables.start_K)
    pairs_KK = forward_TNK[:-1].reshape(-1, states).T @ weighed_TNK[1:].reshape(-1, states)
    tokens_U, place_M = torch.unique(tokens_TN.reshape(-1), return_inverse=True)
    emission_UK = posterior_TNK.new_zeros(len(tokens_U), states)
    emission_UK.index_add_(0, place_M, posterior_TNK.view(-1, states))
    log_TN = scale_TN1[..., 0].double().log() + tables.log_scale_V[tokens_TN]
    return Expectation(
        log_likelihood=float(log_TN.sum(0)[possible_N1[:, 0]].sum()),
        impossible=int((~possible_N1).sum()),
        start_K=posterior_TNK[0].double().sum(0),
        transition_KK=pairs_KK.double() * tables.transition_KK.double(),
        tokens_U=tokens_U,
        emission_UK=emission_UK,
    )


def _forward(tables: HmmTables, weighed_TNK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of each state after each token, and the divisors that make them sum to 1.

    Once a sequence becomes impossible, its states and its scale are 0 from there on.
    """
    length, count, _ = weighed_TNK.shape
    forward_TNK = torch.empty_like(weighed_TNK)
    scale_TN1 = weighed_TNK.new_empty(length, count, 1)
    expected_NK = tables.start_K.repeat(count, 1)
    for now_NK, emitted_NK, scale_N1 in zip(forward_TNK, weighed_TNK, scale_TN1, strict=True):
        torch.mul(expected_NK, emitted_NK, out=now_NK)
        torch.sum(now_NK, 1, keepdim=True, out=scale_N1)
        now_NK /= scale_N1
        torch.mm(now_NK, tables.transition_KK, out=expected_NK)
    if (scale_TN1 > 0).all():
        return forward_TNK, scale_TN1
    return forward_TNK.nan_to_num_(0.0), scale_TN1.nan_to_num_(0.0)


def _backward(tables: HmmTables, forward_TNK: Tensor, weighed_TNK: Tensor, possible_N1: Tensor) -> Tensor:
    """Return the probability of each state given the whole sequence; 0 throughout for an impossible one.

    `weighed_TNK` holds emissions divided by scales; it is multiplied in place by the backward probabilities,
    which gives the factor of the expected transitions.
    """
    posterior_TNK = torch.empty_like(forward_TNK)
    later_NK = possible_N1.to(forward_TNK.dtype).repeat(1, forward_TNK.shape[2])
    for position in reversed(range(len(forward_TNK))):
        torch.mul(forward_TNK[position], later_NK, out=posterior_TNK[position])
        weighed_TNK[position] *= later_NK
        if position:
            torch.mm(weighed_TNK[position], tables.backward_KK, out=later_NK)
    return posterior_TNK
