"""The probabilities under which expected counts are likeliest: the M-step of Baum and Welch.

With `smoothing` 0 this is maximum likelihood, as Baum and Welch have it. Above 0 it is the mode under a
Dirichlet prior that counts each transition and each emission `smoothing` times beforehand; then what never
rises and falls is the likelihood plus the logarithm of that prior.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from windlass.models.hmm.weights import Array, Weights
from windlass.train.hidden.tally import Counts


def maximise(counts: Counts, before: Weights, smoothing: float) -> Weights:
    """Return the next probabilities. A state that is expected nowhere keeps what it had: any would do."""
    emission_KV = counts.emission_VK.T.contiguous()
    return Weights(
        start_K=_rows(counts.start_K, before.start_K, smoothing),
        transition_KK=_rows(counts.transition_KK, before.transition_KK, smoothing),
        emission_KV=_rows(emission_KV, before.emission_KV, smoothing),
    )


def log_prior(weights: Weights, smoothing: float) -> float:
    """Return the logarithm of the prior, but for a constant; 0 without smoothing."""
    if not smoothing:
        return 0.0
    with np.errstate(divide="ignore"):
        return smoothing * sum(float(np.log(table).sum()) for table in weights.tables.values())


def _rows(counts: Tensor, before: Array, smoothing: float) -> Array:
    smoothed = counts + smoothing
    total = smoothed.sum(-1, keepdim=True)
    alive = total > 0
    return torch.where(alive, smoothed / torch.where(alive, total, 1.0), torch.from_numpy(before)).numpy()
