"""Sums of expected counts that do not depend on the order of addition.

Sums of floating-point numbers depend on their order, and the order on the number of workers and threads. So
the counts of each block are rounded once to multiples of 2^-bits and added as 64-bit integers, whose sum has
no order. No count can exceed the number of tokens in the corpus, which says how many bits are left for the
fraction: 38 for ten million tokens. docs/decisions/0016 says why, and what it costs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.train.hmm.expectation import Expectation

TOTAL_BITS = 62
LOG_BITS = 10
"""A token costs less than 2^10 nats: float64 has no smaller probability than exp(-745)."""


@dataclass(frozen=True)
class Counts:
    """Expected counts of the whole corpus, in float64."""

    log_likelihood: float
    impossible: int
    start_K: Tensor
    transition_KK: Tensor
    emission_VK: Tensor


class ExactSums:
    """The sums of one pass through the corpus; several threads may add to it."""

    def __init__(self, states: int, vocabulary: int, tokens: int) -> None:
        self.bits = fraction_bits(tokens)
        self._lock = threading.Lock()
        self._start_K = torch.zeros(states, dtype=torch.int64)
        self._transition_KK = torch.zeros(states, states, dtype=torch.int64)
        self._emission_VK = torch.zeros(vocabulary, states, dtype=torch.int64)
        self._facts = torch.zeros(2, dtype=torch.int64)

    def add(self, found: Expectation) -> None:
        """Add the expected counts of one block."""
        start_K, transition_KK = self._fixed(found.start_K), self._fixed(found.transition_KK)
        emission_UK = self._fixed(found.emission_UK)
        likelihood = round(found.log_likelihood * 2.0 ** (self.bits - LOG_BITS))
        with self._lock:
            self._start_K += start_K
            self._transition_KK += transition_KK
            self._emission_VK.index_add_(0, found.tokens_U, emission_UK)
            self._facts += torch.tensor([likelihood, found.impossible])

    def gather(self) -> None:
        """All-reduce the sums over all workers. Every worker must call this."""
        for sums in (self._start_K, self._transition_KK, self._emission_VK, self._facts):
            dist.all_reduce(sums)

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of starts, transitions and emissions, in multiples of 2^-bits."""
        return self._start_K, self._transition_KK, self._emission_VK

    @property
    def facts(self) -> tuple[int, int]:
        """The log-likelihood in multiples of 2^(LOG_BITS - bits), and the number of impossible sequences."""
        likelihood, impossible = self._facts.tolist()
        return likelihood, impossible

    def counts(self) -> Counts:
        likelihood, impossible = self.facts
        return Counts(
            log_likelihood=likelihood_of(likelihood, self.bits),
            impossible=impossible,
            start_K=real(self._start_K, self.bits),
            transition_KK=real(self._transition_KK, self.bits),
            emission_VK=real(self._emission_VK, self.bits),
        )

    def _fixed(self, counts: Tensor) -> Tensor:
        return (counts.double() * 2.0**self.bits).round_().to(torch.int64)


def fraction_bits(tokens: int) -> int:
    """Return the number of fraction bits of a count, for a corpus of this many tokens."""
    return TOTAL_BITS - max(1, tokens).bit_length()


def real(sums: Tensor, bits: int) -> Tensor:
    return sums.double() * 2.0**-bits


def likelihood_of(summed: int, bits: int) -> float:
    return summed * 2.0 ** (LOG_BITS - bits)
