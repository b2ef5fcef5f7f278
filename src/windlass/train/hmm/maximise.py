"""The M-step of Baum-Welch: the probabilities that maximise the likelihood of the expected counts.

With `smoothing` 0 this is maximum likelihood. Above 0 it is the mode under a Dirichlet prior that counts each
transition and each emission `smoothing` times in advance; then the likelihood plus the log prior never
decreases.

Every row is computed independently, so the bits do not depend on how parameter servers divide the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from windlass.models.hmm.weights import Array, HmmWeights
from windlass.train.hmm.exact_sum import Counts


def maximise(counts: Counts, before: HmmWeights, smoothing: float) -> HmmWeights:
    """Return the next probabilities. A state with no expected counts keeps its row."""
    emission_KV = counts.emission_VK.T.contiguous().numpy()
    return HmmWeights(
        start_K=likeliest(counts.start_K.numpy(), before.start_K, smoothing),
        transition_KK=likeliest(counts.transition_KK.numpy(), before.transition_KK, smoothing),
        emission_KV=likeliest(emission_KV, before.emission_KV, smoothing),
    )


def likeliest(counts: Array, before: Array, smoothing: float) -> Array:
    """Normalise every row of counts; a row of zeros keeps its previous value."""
    smoothed = counts + smoothing
    total = smoothed.sum(-1, keepdims=True)
    found: Array = np.where(total > 0, smoothed / np.where(total > 0, total, 1.0), before)
    return found


def log_prior(weights: HmmWeights, smoothing: float) -> float:
    """Return the log prior up to a constant; 0 without smoothing."""
    rows = [total for table in weights.tables.values() for total in log_rows(table)] if smoothing else []
    return log_prior_of(rows, smoothing)


def log_prior_of(rows: Iterable[float], smoothing: float) -> float:
    """Return the log prior from the row sums of logarithms, which may come in any order."""
    return smoothing * math.fsum(rows) if smoothing else 0.0


def log_rows(table: Array) -> list[float]:
    """Return the sum of the logarithms of each row."""
    with np.errstate(divide="ignore"):
        found: list[float] = np.log(np.atleast_2d(table)).sum(-1).tolist()
        return found
