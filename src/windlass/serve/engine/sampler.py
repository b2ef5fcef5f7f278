"""From scores to tokens, for the whole batch in one pass.

A token is a pure function of its row's scores, its request, its position and what the request has
generated so far; neither the rest of the batch nor an earlier engine's state changes it. The rules, in order:

    1. edits        a token that occurred: score / r if positive, score * r if not (r = repetition penalty);
                    then minus frequency_penalty * count, minus presence_penalty if count > 0, plus bias
    2. mask         only tokens whose bit is set may be chosen
    3. temperature  weight = e^((score - best) / temperature); 0 takes the first of the highest scores
    4. top-k        keep weights not below the k-th largest
    5. top-p        keep the largest weights until their mass reaches p of what top-k left
    6. min-p        keep masses of at least p times the best
    7. draw         the first token whose running mass, in order of tokens, exceeds the random part

Equal weights are kept or dropped together. A mass is a weight in whole units of 2^-42, and the random
number has 48 bits, so sums and comparisons are exact in any order: native code (native/sample.cpp) and
numpy (sampler_numpy.py) give the same tokens. Log-probabilities are the model's own, before all of this.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.serve.engine import sampler_numpy
from windlass.serve.engine.native import ThreadPool, at, library
from windlass.serve.engine.sampler_numpy import ASK, EDIT, WHOLE, SampledTokens
from windlass.spec.protocol.wire import Alternative, Generate

RANDOM_BITS = 48
COLDEST, HOTTEST = 1e30, 1e-30
"""Bounds of log2(e) / temperature: finite and not zero in float32."""
_NO_EDITS = np.empty(0, EDIT)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What determines the token of one row besides its scores.

    `position` is the place of the new token in its sequence. `counts` is how often each token was
    generated; with a repetition penalty it also has the prompt's tokens, with 0. Several rows may
    belong to one sequence at successive positions.
    """

    request: Generate
    position: int
    counts: Mapping[int, int] | None = None
    mask: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens, row by row; a row that is not `numeric` had no finite score, and its token is invalid."""

    tokens: list[int]
    numeric: list[bool]
    logprobs: list[float]
    alternatives: list[list[Alternative]] = field(default_factory=list)


def draw(
    logits_BV: NDArray[np.float32], rows: Sequence[SamplingRow], thread_pool: ThreadPool | None = None
) -> Drawn:
    """Choose a token for every row; the thread pool, if given, shares the rows.

    The scores may be modified meanwhile and are restored.
    """
    vocabulary = logits_BV.shape[1]
    edits = [_edits(row) for row in rows]
    settings = np.array(_settings(rows, [len(some) for some in edits], vocabulary), dtype=ASK)
    nonempty = [some for some in edits if len(some)]
    every_edit = np.concatenate(nonempty) if nonempty else _NO_EDITS
    shared = library()
    if shared is None:
        masks = [row.mask for row in rows]
        tokens, numeric, logprobs = sampler_numpy.draw(logits_BV, settings, every_edit, masks)
    else:
        tokens, numeric, logprobs = _draw_native(shared, thread_pool, logits_BV, settings, every_edit)
    alternatives = _alternatives(logprobs, [row.request.logprobs for row in rows])
    return Drawn(tokens.tolist(), numeric.tolist(), logprobs.logprobs_B.tolist(), alternatives)


def score(
    logits_BV: NDArray[np.float32], targets: Sequence[int], wanted: int
) -> tuple[list[float], list[list[Alternative]]]:
    """Return the log-probability of the targets and of the `wanted` likeliest tokens, row by row."""
    wanted = min(wanted, logits_BV.shape[1])
    targets_B = np.array(targets, dtype=np.int32)
    shared = library()
    if shared is None:
        logprobs = sampler_numpy.score(logits_BV, targets_B, wanted)
    else:
        logprobs = SampledTokens.empty(len(targets), wanted)
        shared.windlass_score(
            None, at(logits_BV), *logits_BV.shape, at(targets_B), wanted, *map(at, logprobs)
        )  # fmt: skip
    return logprobs.logprobs_B.tolist(), _alternatives(logprobs, [wanted] * len(targets))


def uniform(seed: int, position: int) -> float:
    """Return the random number in [0, 1) of the token at `position`."""
    return random_bits(seed, position) / float(2**RANDOM_BITS)


def random_bits(seed: int, position: int) -> int:
    """Hash seed and position: the same in every engine, whatever was sampled before."""
    key = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=RANDOM_BITS // 8).digest(), "little")


def _settings(rows: Sequence[SamplingRow], edits: Sequence[int], vocabulary: int) -> list[tuple[float, ...]]:
    """Return the fields of ASK for each row."""
    settings: list[tuple[float, ...]] = []
    first = 0
    for row, count in zip(rows, edits, strict=True):
        request, temperature = row.request, row.request.temperature
        is_random = temperature > 0.0
        settings.append(
            (
                random_bits(request.seed, row.position) if is_random else 0,
                0 if row.mask is None else row.mask.ctypes.data,
                int(request.min_p * WHOLE),
                request.top_p,
                min(COLDEST, max(HOTTEST, math.log2(math.e) / temperature)) if is_random else 0.0,
                request.top_k if request.top_k < vocabulary else 0,
                min(request.logprobs, vocabulary),
                first,
                count,
            )
        )
        first += count
    return settings


def _edits(row: SamplingRow) -> NDArray[Any]:
    """Return bias and penalties as one entry for each token that they change."""
    request, counts = row.request, row.counts or {}
    if not counts and not request.logit_bias:
        return _NO_EDITS
    extra = [token for token in request.logit_bias if token not in counts]
    edits = np.zeros(len(counts) + len(extra), EDIT)
    edits["token"] = [*counts, *extra]
    edits["repetition"] = 1.0
    if counts:
        count = np.fromiter(counts.values(), np.float64, len(counts))
        seen = edits[: len(counts)]
        seen["repetition"] = request.repetition_penalty
        seen["added"] = -request.frequency_penalty * count - request.presence_penalty * (count > 0)
    if request.logit_bias:
        edits["added"] += [request.logit_bias.get(token, 0.0) for token in edits["token"].tolist()]
    return edits


def _draw_native(
    shared: ctypes.CDLL,
    thread_pool: ThreadPool | None,
    logits_BV: NDArray[np.float32],
    settings: NDArray[Any],
    edits: NDArray[Any],
) -> tuple[NDArray[np.int32], NDArray[np.bool_], SampledTokens]:
    assert logits_BV.dtype == np.float32
    rows = len(settings)
    # One buffer for all small results: getting an address from numpy takes as long as choosing a token.
    tokens_B, logprobs_B, numeric_B = small_3B = np.empty((3, rows), np.int32)
    wanted = max(0, int(settings["wanted"].max(initial=0)))
    logprobs = SampledTokens.empty(rows, wanted)._replace(logprobs_B=logprobs_B.view(np.float32))
    tokens_at = at(small_3B) or 0
    rivals = (at(logprobs.rivals_BK), at(logprobs.rival_logprobs_BK)) if wanted else (None, None)
    shared.windlass_draw(
        thread_pool and thread_pool.handle, at(logits_BV), *logits_BV.shape,
        at(settings), at(edits) if len(edits) else None,
        tokens_at, tokens_at + 8 * rows, tokens_at + 4 * rows,
        *rivals, wanted,
    )  # fmt: skip
    return tokens_B, numeric_B.view(np.bool_)[:rows], logprobs


def _alternatives(logprobs: SampledTokens, wanted: Sequence[int]) -> list[list[Alternative]]:
    return [
        [
            Alternative(token, logprob)
            for token, logprob in zip(
                logprobs.rivals_BK[row, :count].tolist(),
                logprobs.rival_logprobs_BK[row, :count].tolist(),
                strict=True,
            )
        ]
        if count > 0
        else []
        for row, count in enumerate(wanted)
    ]
