"""Which sample goes to which rank at which step: pure functions, so the whole data state is one integer.

A part of `tokens` tokens has n = (tokens - 1) // context windows; window w begins at token w * context and
has context + 1 tokens, because the target of each is the next one. Position i, counted from the first sample
of a run, is in epoch i // n, and its window is P(i % n), where P is a permutation of [0, n) keyed by (seed,
epoch). P is computed, not stored: a Feistel network on the next even number of bits (Luby and Rackoff 1988),
walked along its cycle until it falls below n (Black and Rogaway 2002). Any number of workers that divide the
positions among them therefore see every sample once an epoch, whatever their number was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from windlass.corpus.shards import TokenPart
from windlass.spec.errors import BadInput

Positions = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

ROUNDS = 6
DIGEST_BITS = 48
DIGEST_CHUNK = 1 << 20
"""Positions summed at once: 2^20 numbers of 32 bits stay below 2^53, and 8 MiB is little memory."""


def sample_count(tokens: int, context: int) -> int:
    """Return how many windows a part holds; at least one, or BadInput says what would fit."""
    if tokens < context + 1:
        raise BadInput(
            f"{tokens} tokens are too few for one sample of context {context}, which takes {context + 1}",
            hint=f"use a context of at most {max(1, tokens - 1)}, or more text",
        )
    return (tokens - 1) // context


def share_of(start: int, count: int, rank: int, world: int) -> range:
    """Return the positions of one worker among `world` equal ones, of `count` positions from `start` on."""
    return divided(start, count, [1] * world)[rank]


def divided(start: int, count: int, weights: Sequence[int]) -> list[range]:
    """Divide `count` positions from `start` on in proportion to whole-number weights, leaving none out.

    Boundaries are rounded sums of weights, so each share is within one of its due and no rounding adds up.
    """
    total, boundary, before = sum(weights), 0, 0
    if total <= 0 or min(weights) < 0:
        raise BadInput(
            f"cannot divide a batch by weights {list(weights)}: they must be zero or more, not all zero"
        )
    shares = []
    for weight in weights:
        boundary += weight
        until = int(Fraction(count * boundary, total))
        shares.append(range(start + before, start + until))
        before = until
    return shares


def windows_at(positions: npt.ArrayLike, samples: int, seed: int) -> Positions:
    """Return the window of each position; an array of the positions' own form, also of a single one."""
    where = np.asarray(positions, dtype=np.int64)
    flat = where.reshape(-1)
    return permuted(flat % samples, samples, _key(seed, flat // samples)).reshape(where.shape)


def permuted(index: Positions, size: int, key: UInt64s) -> Positions:
    """Move each index in [0, size) to where the permutation of its key puts it."""
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    result = _feistel(index.astype(np.uint64), half, key)
    outside = result >= size
    while outside.any():
        result[outside] = _feistel(result[outside], half, key[outside])
        outside = result >= size
    return result.astype(np.int64)


def digest_of(positions: npt.ArrayLike) -> int:
    """Return the digest of a set of positions: the sum of 32 mixed bits of each, modulo 2^48.

    A sum has no order and can be added up from parts, so each worker digests what it really read and the sum
    over workers and steps is the digest of the ledger's range if, and almost only if, none was left out or
    read twice. Digests of parts are added modulo 2^48.
    """
    flat = np.asarray(positions, dtype=np.int64).reshape(-1)
    chunks = (flat[at : at + DIGEST_CHUNK] for at in range(0, len(flat), DIGEST_CHUNK))
    return sum(_digest_of_chunk(chunk) for chunk in chunks) % (1 << DIGEST_BITS)


def digest_of_range(first: int, until: int) -> int:
    """Return the digest of the positions first .. until - 1, in bounded memory."""
    starts = range(first, until, DIGEST_CHUNK)
    chunks = (np.arange(at, min(until, at + DIGEST_CHUNK), dtype=np.int64) for at in starts)
    return sum(_digest_of_chunk(chunk) for chunk in chunks) % (1 << DIGEST_BITS)


def read_batch(part: TokenPart, positions: Sequence[int] | Positions, context: int, seed: int) -> Positions:
    """Read the samples at `positions`: one row of context + 1 tokens each."""
    windows = windows_at(positions, sample_count(len(part), context), seed)
    return read_windows(part, windows, context)


def read_windows(part: TokenPart, windows: Sequence[int] | Positions, context: int) -> Positions:
    """Read windows by number, in the order of the text: evaluation goes through them all."""
    rows = np.empty((len(windows), context + 1), dtype=np.int64)
    for row, window in zip(rows, windows, strict=True):
        first = int(window) * context
        row[:] = part.read(first, first + context + 1)
    return rows


def _digest_of_chunk(positions: Positions) -> int:
    return int((_mixed(positions.astype(np.uint64)) >> np.uint64(32)).sum())


def _feistel(x: UInt64s, half: np.uint64, key: UInt64s) -> UInt64s:
    """Permute the numbers of 2 * half bits: each round adds a keyed hash of one half to the other."""
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & low
    for number in range(ROUNDS):
        left, right = right, left ^ (_mixed(right + _mixed(key + np.uint64(number))) & low)
    return (left << half) | right


def _key(seed: int, epoch: Positions) -> UInt64s:
    """Spread (seed, epoch) over 64 bits, so that neighbours have nothing in common."""
    seeds = np.full(epoch.shape, seed & 0xFFFF_FFFF_FFFF_FFFF, dtype=np.uint64)
    return _mixed(_mixed(seeds) + epoch.astype(np.uint64))


def _mixed(x: UInt64s) -> UInt64s:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on every bit."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
