"""Tokens to counted windows: the first stage, a pure function of a block of text.

A window is `order` consecutive tokens. It ends early at the end of its document and is padded with 0. Ids are
packed into 64-bit words, the first token highest, so that sorted keys are n-grams sorted by their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.native import at, ours

Keys = NDArray[np.uint64]
"""(n, parts)"""
Counts = NDArray[np.uint64]
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Packing:
    """How the tokens of a window are packed."""

    order: int
    vocabulary: int
    end: int

    @property
    def bits(self) -> int:
        return max(1, (self.vocabulary - 1).bit_length())

    @property
    def per(self) -> int:
        """Ids in one 64-bit word; the first id has the leading bits."""
        return min(self.order, 64 // self.bits)

    @property
    def parts(self) -> int:
        return -(-self.order // self.per)

    def column(self, keys: Keys, place: int) -> NDArray[np.uint32]:
        """Return the id at one place of every window."""
        part, slot = divmod(place, self.per)
        shift = np.uint64(self.bits * (self.per - 1 - slot))
        return ((keys[:, part] >> shift) & np.uint64((1 << self.bits) - 1)).astype(np.uint32)


@dataclass(frozen=True)
class Counted:
    """Windows, sorted and each once, and how often each was seen."""

    keys: Keys
    counts: Counts

    def __len__(self) -> int:
        return len(self.counts)


def count_block(tokens: Ids, windows: int, packing: Packing) -> Counted:
    """Count the windows that begin with the first `windows` tokens; further tokens only complete them."""
    return counted(pack(tokens, windows, packing), packing)


def pack(tokens: Ids, windows: int, packing: Packing, *, native: bool = True) -> Keys:
    """Return the keys of the windows, in the order of the text."""
    tokens = np.ascontiguousarray(tokens, dtype=np.uint32)
    keys = np.zeros((windows, packing.parts), np.uint64)
    shared = ours() if native else None
    if shared is not None:
        p = packing
        shared.windlass_ngram_windows(
            at(tokens), len(tokens), windows, p.order, p.bits, p.per, p.end, at(keys)
        )
        return keys
    open_ = np.ones(windows, bool)
    padded = np.concatenate([tokens, np.zeros(packing.order, np.uint32)])
    for place in range(packing.parts * packing.per):
        part = place // packing.per
        keys[:, part] <<= np.uint64(packing.bits)
        if place >= packing.order:
            continue
        here = padded[place : place + windows]
        open_ = open_ & (np.arange(place, place + windows) < len(tokens))
        keys[:, part] |= np.where(open_, here, 0).astype(np.uint64)
        if place:
            open_ = open_ & (here != packing.end)
    return keys


def counted(keys: Keys, packing: Packing, *, native: bool = True) -> Counted:
    """Sort keys and count equal ones. Sorts the given array in place."""
    shared = ours() if native else None
    if shared is None:
        return _summed(keys, np.ones(len(keys), np.uint64))
    counts, spare = np.empty(len(keys), np.uint64), np.empty_like(keys)
    leading = min(64, packing.bits * packing.per)
    found = shared.windlass_ngram_count(at(keys), at(spare), len(keys), packing.parts, leading, at(counts))
    return Counted(keys[:found], counts[:found])


def merged(runs: Sequence[Counted], *, native: bool = True) -> Counted:
    """Merge sorted runs into one, adding up the counts of equal keys."""
    shared = ours() if native else None
    if len(runs) == 1:
        return runs[0]
    if shared is None:
        return _summed(np.concatenate([r.keys for r in runs]), np.concatenate([r.counts for r in runs]))
    kept = [(np.ascontiguousarray(run.keys), np.ascontiguousarray(run.counts)) for run in runs]
    addresses = np.array(
        [[keys.ctypes.data, counts.ctypes.data] for keys, counts in kept], np.uint64
    ).T.copy()
    lengths = np.array([len(run) for run in runs], np.int64)
    total, parts = int(lengths.sum()), runs[0].keys.shape[1]
    keys, counts = np.empty((total, parts), np.uint64), np.empty(total, np.uint64)
    found = shared.windlass_ngram_merge(
        len(runs), at(addresses[0]), at(addresses[1]), at(lengths), parts, at(keys), at(counts)
    )
    return Counted(keys[:found], counts[:found])


def _summed(keys: Keys, counts: Counts) -> Counted:
    if not len(keys):
        return Counted(keys, counts)
    order = np.lexsort(keys.T[::-1])
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], (keys[1:] != keys[:-1]).any(axis=1)]))
    return Counted(keys[starts], np.add.reduceat(counts, starts))
