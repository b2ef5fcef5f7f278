"""The probabilities under which expected counts are likeliest: the M-step of Baum and Welch.

With `smoothing` 0 this is maximum likelihood, as Baum and Welch have it. Above 0 it is the mode under a
Dirichlet prior that counts each transition and each emission `smoothing` times beforehand; then what never
rises and falls is the likelihood plus the logarithm of that prior.

Every row is computed by itself, to the same bits whichever rows are beside it: parameter servers divide them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from windlass.models.hmm.weights import Array, HmmWeights
from windlass.train.hmm.exact_sum import Counts


def maximise(counts: Counts, before: HmmWeights, smoothing: float) -> HmmWeights:
    """Return the next probabilities. A state that is expected nowhere keeps what it had: any would do."""
    emission_KV = counts.emission_VK.T.contiguous().numpy()
    return HmmWeights(
        start_K=likeliest(counts.start_K.numpy(), before.start_K, smoothing),
        transition_KK=likeliest(counts.transition_KK.numpy(), before.transition_KK, smoothing),
        emission_KV=likeliest(emission_KV, before.emission_KV, smoothing),
    )


def likeliest(counts: Array, before: Array, smoothing: float) -> Array:
    """Let every row of counts sum to 1; one without any keeps what it was."""
    smoothed = counts + smoothing
    total = smoothed.sum(-1, keepdims=True)
    found: Array = np.where(total > 0, smoothed / np.where(total > 0, total, 1.0), before)
    return found


def log_prior(weights: HmmWeights, smoothing: float) -> float:
    """Return the logarithm of the prior, but for a constant; 0 without smoothing."""
    rows = [total for table in weights.tables.values() for total in log_rows(table)] if smoothing else []
    return log_prior_of(rows, smoothing)


def log_prior_of(rows: Iterable[float], smoothing: float) -> float:
    """Return it from the sums of the logarithms of all rows, in whatever order they come."""
    return smoothing * math.fsum(rows) if smoothing else 0.0


def log_rows(table: Array) -> list[float]:
    """Return the sum of the logarithms of each row."""
    with np.errstate(divide="ignore"):
        found: list[float] = np.log(np.atleast_2d(table)).sum(-1).tolist()
        return found
