"""Counts the distinct n-grams in a quarter, a half and the whole of a sample of a text.

From these the planner predicts the cost of counting the whole text (plan/local/ngram.py). The sample is
many short pieces from all over the text, because neighbours resemble each other; the smaller ones are every
fourth and every second of its pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.shards import TokenPart

SAMPLE_TOKENS = 1 << 20
PIECE_TOKENS = 1 << 14
PARTS = (4, 2, 1)
MIX, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)

Pieces = list[NDArray[np.uint64]]
Triple = tuple[int, int, int]
"""In a quarter, a half and the whole of the sample."""


def sampled(part: TokenPart, max_tokens: int = SAMPLE_TOKENS) -> Pieces:
    """Return pieces from all over a text, a multiple of four of them; all of a short text."""
    tokens = min(part.tokens, max_tokens)
    count = max(PARTS[0], tokens // PIECE_TOKENS // PARTS[0] * PARTS[0])
    size = tokens // count
    starts = np.linspace(0, part.tokens - size, count).astype(np.int64).tolist()
    return [np.asarray(part.read(start, start + size), np.uint64) for start in starts]


def growth_of(pieces: Pieces, thresholds: Sequence[int]) -> list[tuple[Triple, Triple]]:
    """Return, for each order, the number of distinct n-grams and of those above the threshold."""
    found = []
    for order, threshold in enumerate(thresholds, start=1):
        counts = [_counts(pieces[::every], order) for every in PARTS]
        seen, kept = ([int((c > minimum).sum()) for c in counts] for minimum in (0, threshold))
        found.append(((seen[0], seen[1], seen[2]), (kept[0], kept[1], kept[2])))
    return found


def _counts(pieces: Pieces, order: int) -> NDArray[Any]:
    """Count n-grams by a hash of 64 bits: of a million, no two are likely to share one."""
    keys = np.concatenate([_hashes(piece, order) for piece in pieces])
    counts: NDArray[Any] = np.unique(keys, return_counts=True)[1]
    return counts


def _hashes(piece: NDArray[np.uint64], order: int) -> NDArray[np.uint64]:
    length = max(0, len(piece) - order + 1)
    keys = np.zeros(length, np.uint64)
    for place in range(order):
        keys = (keys ^ (piece[place : place + length] + np.uint64(1))) * MIX
        keys ^= keys >> SHIFT
    return keys
