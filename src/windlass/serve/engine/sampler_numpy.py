"""The rules of `sampler` in numpy: for machines without the native library, and to test it against.

Legend: B rows, V vocabulary, K alternatives, N tokens that are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

UNIT = 1024.0
"""The last bit of a float64 just above 1024 is worth 2^-42: adding it rounds a weight to a whole mass."""
WHOLE = 2.0**42
"""The mass of the best token."""
LOG2_E = np.float32(1.44269504)
POWER = (1.32647261e-3, 9.67151299e-3, 5.55073358e-2, 2.40222424e-1, 6.93147004e-1, 1.0)
"""2^f for |f| <= 1/2, fitted to the smallest relative error with the last fixed to 1; highest power first."""

ASK = np.dtype(
    [
        ("number", "i8"),
        ("mask", "i8"),
        ("least", "i8"),
        ("top_p", "f8"),
        ("coldness", "f4"),
        ("top_k", "i4"),
        ("wanted", "i4"),
        ("first_edit", "i4"),
        ("edits", "i4"),
    ],
    align=True,
)
"""Sampling settings of a row; native/sample.cpp has the same structure and documents the fields."""
EDIT = np.dtype([("added", "f8"), ("repetition", "f4"), ("token", "i4")], align=True)

Floats = NDArray[np.float32]


class SampledTokens(NamedTuple):
    """Log-probabilities of the chosen tokens, and the likeliest tokens with theirs."""

    logprobs_B: Floats
    rivals_BK: NDArray[np.int32]
    rival_logprobs_BK: Floats

    @classmethod
    def empty(cls, rows: int, wanted: int) -> SampledTokens:
        return cls(
            np.zeros(rows, np.float32),
            np.zeros((rows, wanted), np.int32),
            np.zeros((rows, wanted), np.float32),
        )


def draw(
    logits_BV: Floats,
    settings: NDArray[Any],
    edits: NDArray[Any],
    masks: Sequence[NDArray[np.uint32] | None],
) -> tuple[NDArray[np.int32], NDArray[np.bool_], SampledTokens]:
    """Choose a token for every row; also return which rows had a finite score, and the log-probabilities."""
    tokens_B, numeric_B = np.zeros(len(settings), np.int32), np.zeros(len(settings), np.bool_)
    logprobs = SampledTokens.empty(len(settings), max(0, int(settings["wanted"].max(initial=0))))
    for row, (logits_V, ask, mask) in enumerate(zip(logits_BV, settings, masks, strict=True)):
        own = edits[ask["first_edit"] : ask["first_edit"] + ask["edits"]]
        scores_V = _masked(_edited(logits_V, own), mask)
        best = scores_V.max()
        if np.isfinite(best):  # the maximum is NaN if any score is
            numeric_B[row] = True
            tokens_B[row] = _choose(scores_V, best, ask)
        if ask["wanted"] >= 0:
            _set_logprobs(logprobs, row, logits_V, int(tokens_B[row]), int(ask["wanted"]))
    return tokens_B, numeric_B, logprobs


def score(logits_BV: Floats, targets_B: NDArray[np.int32], wanted: int) -> SampledTokens:
    """Return the log-probabilities of the targets and of the likeliest tokens."""
    logprobs = SampledTokens.empty(len(targets_B), wanted)
    for row, (logits_V, target) in enumerate(zip(logits_BV, targets_B.tolist(), strict=True)):
        _set_logprobs(logprobs, row, logits_V, target, wanted)
    return logprobs


def weights(scores_V: Floats, best: np.float32, coldness: np.float32) -> Floats:
    """Return 2^((score - best) * coldness) by exactly the operations of native/sample.cpp."""
    with np.errstate(invalid="ignore"):
        x_V = np.fmax((scores_V - best) * coldness, np.float32(-64.0))
    n_V = np.rint(x_V)
    f_V = x_V - n_V
    p_V: Floats = np.full_like(f_V, POWER[0])
    for coefficient in POWER[1:]:
        p_V = p_V * f_V + np.float32(coefficient)
    scaled_V: Floats = (p_V.view(np.int32) + (n_V.astype(np.int32) << 23)).view(np.float32)
    return scaled_V


def masses(weights_V: Floats) -> NDArray[np.int64]:
    """Return weights in whole units of 2^-42."""
    whole_V = (weights_V.astype(np.float64) + UNIT).view(np.int64)
    return whole_V - np.float64(UNIT).view(np.int64)


def _edited(logits_V: Floats, edits: NDArray[Any]) -> Floats:
    if not len(edits):
        return logits_V
    edited_V = logits_V.copy()
    at, repetition = edits["token"], edits["repetition"].astype(np.float64)
    before = edited_V[at].astype(np.float64)
    edited_V[at] = np.where(before > 0, before / repetition, before * repetition) + edits["added"]
    return edited_V


def _masked(scores_V: Floats, mask: NDArray[np.uint32] | None) -> Floats:
    if mask is None:
        return scores_V
    allowed_V = np.unpackbits(mask.view(np.uint8), count=len(scores_V), bitorder="little")
    return np.where(allowed_V, scores_V, np.float32(-np.inf))


def _choose(scores_V: Floats, best: np.float32, ask: np.void) -> int:
    if ask["coldness"] == 0:
        return int(scores_V.argmax())
    weights_V = weights(scores_V, best, ask["coldness"])
    masses_V = masses(weights_V)
    kept_V = np.where(weights_V >= _floor(weights_V, masses_V, ask), masses_V, 0)
    kept_V[kept_V < ask["least"]] = 0
    sums_V = kept_V.cumsum()
    target = int(sums_V[-1]) * int(ask["number"]) >> 48
    return int(sums_V.searchsorted(target, side="right"))


def _floor(weights_V: Floats, masses_V: NDArray[np.int64], ask: np.void) -> np.float32:
    """Return the smallest weight that top-k and top-p keep."""
    top_k, top_p = int(ask["top_k"]), float(ask["top_p"])
    if not top_k and top_p >= 1.0:
        return np.float32(0)
    order_V = weights_V.argsort()[::-1]
    sorted_V = weights_V[order_V]
    floor = sorted_V[top_k - 1] if top_k else np.float32(0)
    if top_p < 1.0:
        sums_N = masses_V[order_V[sorted_V >= floor]].cumsum()
        goal = max(1, int(top_p * float(sums_N[-1])))
        floor = max(floor, sorted_V[int(sums_N.searchsorted(goal))])
    return np.float32(floor)


def _set_logprobs(logprobs: SampledTokens, row: int, logits_V: Floats, token: int, wanted: int) -> None:
    best = np.fmax.reduce(logits_V)
    total = int(masses(weights(logits_V, best, LOG2_E)).sum())
    log_of_sum = float(best) + math.log(total / WHOLE) if total else math.nan
    logprobs.logprobs_B[row] = float(logits_V[token]) - log_of_sum
    if wanted > 0:
        likeliest = np.argsort(-logits_V, kind="stable")[:wanted]
        logprobs.rivals_BK[row, :wanted] = likeliest
        logprobs.rival_logprobs_BK[row, :wanted] = logits_V[likeliest].astype(np.float64) - log_of_sum
