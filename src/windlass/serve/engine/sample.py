"""From scores to tokens, for the whole batch at once.

The random number of a token is a hash of its request's seed and of its position in the sequence, and of
nothing else: neither company nor an earlier engine's state changes what is drawn.

Legend: B rows that are sampled, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.serve.engine.sequence import Sequence
from windlass.spec.wire import Alternative, Generate

RANDOM_BITS = 48
SHARP_TOKENS = 256


@dataclass(frozen=True)
class Settings:
    """The sampling parameters of a batch as tensors; built when the batch changes, not every step."""

    temperature_B1: Tensor
    top_k_B1: Tensor
    top_p_B1: Tensor
    min_p_B1: Tensor
    is_greedy: bool
    most_k: int
    has_top_p: bool
    has_min_p: bool


def settings_of(requests: Listed[Generate], vocabulary: int, device: torch.device) -> Settings:
    """Gather the parameters of the requests of a batch."""
    top_k = [min(r.top_k, vocabulary) or vocabulary for r in requests]
    limited = [k for k in top_k if k < vocabulary]

    def column(values: list[float] | list[int]) -> Tensor:
        return torch.tensor(values, device=device)[:, None]

    return Settings(
        temperature_B1=column([r.temperature for r in requests]),
        top_k_B1=column(top_k),
        top_p_B1=column([r.top_p for r in requests]),
        min_p_B1=column([r.min_p for r in requests]),
        is_greedy=all(r.temperature == 0.0 for r in requests),
        most_k=max(limited, default=0),
        has_top_p=any(r.top_p < 1.0 for r in requests),
        has_min_p=any(r.min_p > 0.0 for r in requests),
    )


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that decides about the token at `position`."""
    key = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = hashlib.blake2b(key, digest_size=RANDOM_BITS // 8).digest()
    return float(int.from_bytes(digest, "little") / 2**RANDOM_BITS)


def choose(logits_BV: Tensor, settings: Settings, uniform_B: Listed[float]) -> Tensor:
    """Return one token for every row; temperature 0 takes the highest score."""
    best_B = logits_BV.argmax(dim=-1)
    if settings.is_greedy:
        return best_B
    weights_BV = weights(logits_BV, settings)
    # In float64: the sum of a large vocabulary's small weights must not lose any of them.
    sums_BV = weights_BV.cumsum(dim=-1, dtype=torch.float64)
    targets_B1 = (
        torch.tensor(uniform_B, dtype=torch.float64, device=logits_BV.device)[:, None] * sums_BV[:, -1:]
    )
    drawn_B = torch.searchsorted(sums_BV, targets_B1, right=True)[:, 0]
    return torch.where(settings.temperature_B1[:, 0] == 0.0, best_B, drawn_B)


def weights(logits_BV: Tensor, settings: Settings) -> Tensor:
    """Return what the draw goes by: probabilities, with 0 for tokens that top-k, top-p or min-p leave out.

    Temperature comes first; top-p counts within what top-k left. The rows do not sum to 1.
    """
    cool_B1 = torch.where(settings.temperature_B1 == 0.0, 1.0, settings.temperature_B1)
    # The highest score becomes 0 before the division, so that no temperature can overflow it.
    p_BV = torch.softmax((logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / cool_B1, dim=-1)
    highest_B1 = p_BV.amax(dim=-1, keepdim=True)
    if settings.most_k:
        top_BK = p_BV.topk(settings.most_k, dim=-1).values
        last_B1 = top_BK.gather(1, settings.top_k_B1.clamp(max=settings.most_k) - 1)
        unlimited_B1 = settings.top_k_B1 > settings.most_k
        p_BV = p_BV.where((p_BV >= last_B1) | unlimited_B1, 0.0)
    if settings.has_top_p:
        p_BV = p_BV.where(p_BV >= _least_of_nucleus(p_BV, settings.top_p_B1), 0.0)
    if settings.has_min_p:
        p_BV = p_BV.where(p_BV >= settings.min_p_B1 * highest_B1, 0.0)
    return p_BV


def _least_of_nucleus(p_BV: Tensor, top_p_B1: Tensor) -> Tensor:
    """Return the smallest probability among the likeliest tokens that together reach top-p; 0 without one.

    A sharp distribution reaches it within its first tokens, which are found much sooner than all of
    them are sorted; only a flat one in the batch makes the long way necessary.
    """
    goal_B1 = top_p_B1 * p_BV.sum(dim=-1, keepdim=True)
    is_open_B1 = top_p_B1 >= 1.0
    best_BK = p_BV.topk(min(SHARP_TOKENS, p_BV.shape[1]), dim=-1).values
    sums_BK = best_BK.cumsum(dim=-1)
    if bool(((sums_BK[:, -1:] < goal_B1) & ~is_open_B1).any()):
        best_BK = p_BV.sort(dim=-1, descending=True).values
        sums_BK = best_BK.cumsum(dim=-1)
    last_B1 = (sums_BK < goal_B1).sum(dim=-1, keepdim=True).clamp(max=best_BK.shape[1] - 1)
    return best_BK.gather(1, last_B1).where(~is_open_B1, 0.0)


def adjust(logits_BV: Tensor, sequences: Listed[Sequence]) -> Tensor:
    """Apply logit biases and penalties: few requests have any, so rows are done one by one."""
    adjusted = False
    for row, sequence in enumerate(sequences):
        request, counts_V = sequence.request, sequence.counts_V
        if not request.logit_bias and counts_V is None:
            continue
        if not adjusted:
            logits_BV, adjusted = logits_BV.clone(), True
        if request.logit_bias:
            at = torch.tensor(list(request.logit_bias), device=logits_BV.device)
            logits_BV[row, at] += torch.tensor(list(request.logit_bias.values()), device=logits_BV.device)
        if counts_V is not None:
            logits_BV[row] -= request.frequency_penalty * counts_V + request.presence_penalty * (counts_V > 0)
    return logits_BV


def report(logits_BV: Tensor, chosen_B: Tensor, wanted: int) -> tuple[list[float], list[list[Alternative]]]:
    """Return the log-probability of the chosen tokens and of the `wanted` likeliest, row by row.

    These are the model's own, before bias, penalties and temperature.
    """
    logprobs_BV = torch.log_softmax(logits_BV.float(), dim=-1)
    chosen = logprobs_BV.gather(1, chosen_B[:, None])[:, 0].tolist()
    best = logprobs_BV.topk(min(wanted, logits_BV.shape[1]), dim=-1)
    alternatives = [
        [Alternative(token, logprob) for token, logprob in zip(*row, strict=True)]
        for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return chosen, alternatives


def unreported(rows: int) -> tuple[list[float], list[list[Alternative]]]:
    """Return what `report` would, for a batch in which nobody asks for it."""
    return [0.0] * rows, [[]] * rows
