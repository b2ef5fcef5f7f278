"""Finds documents that repeat an earlier one, exactly or nearly.

Texts are compared by their shingles: all runs of eight bytes of the text with white space collapsed. Bytes
serve every script alike, with spaces between words or without. A sketch keeps 128 numbers of a document's
shingles, from one hash of each shingle (one-permutation hashing, Li, Owen and Zhang 2012, with rotation for
empty bins, Shrivastava and Li 2014); the share of equal numbers in two sketches estimates the Jaccard
similarity of the texts within about 0.03. Banding finds the pairs worth estimating.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Sketches = npt.NDArray[np.uint16]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

SHINGLE_BYTES = 8
BINS = 128
LEADERS = 16
RECALL = 0.99
SHORT_BYTES = 2048
_CHUNK = 1 << 18
_EMPTY = np.uint32(0xFFFF_FFFF)


def sketch(texts: Sequence[bytes]) -> Sketches:
    """Return one row of BINS numbers for every text."""
    padded = [text.ljust(SHINGLE_BYTES) for text in texts]
    lowest = np.full(len(texts) * BINS, _EMPTY, dtype=np.uint32)
    if padded:
        lengths = np.array([len(text) for text in padded], dtype=np.int64)
        _gather(b"".join(padded), lengths, lowest)
    # The low half of a minimum is as good as uniform, so 16 bits of it keep 1 - 2^-16 of the precision.
    return _densified(lowest.reshape(-1, BINS)).astype(np.uint16)


def first_of_equals(fingerprints: UInt64s) -> Mask:
    """Mark every document whose fingerprint no earlier one has."""
    order = np.lexsort((fingerprints[:, 1], fingerprints[:, 0]))
    ordered = fingerprints[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    # lexsort is stable, so the first of a run is the earliest document of it.
    marked = np.zeros(len(order), dtype=np.bool_)
    marked[order[first]] = True
    return marked


def first_of_similar(
    sketches: Sketches, similarity: float, text_bytes: UInt64s, text_of: Callable[[int], bytes]
) -> Mask:
    """Mark every document that is not nearly equal to an earlier marked one.

    An estimate from few shingles is rough, so pairs of short documents are compared outright; `text_of`
    gives their collapsed texts.
    """
    marked = np.ones(len(sketches), dtype=np.bool_)
    for earlier, later in _similar_pairs(sketches, similarity):
        if not (marked[earlier] and marked[later]):
            continue
        short = text_bytes[earlier] <= SHORT_BYTES or text_bytes[later] <= SHORT_BYTES
        if not short or jaccard(text_of(int(earlier)), text_of(int(later))) >= similarity:
            marked[later] = False
    return marked


def jaccard(one: bytes, other: bytes) -> float:
    """Return the true similarity of two texts."""
    a, b = _shingles(one), _shingles(other)
    return len(a & b) / len(a | b)


def bands_for(similarity: float) -> tuple[int, int]:
    """Choose (bands, rows): the most rows with which a pair at the threshold is found RECALL of the time.

    A pair of similarity s agrees in all rows of some band with probability 1 - (1 - s^rows)^bands.
    """
    rows = 1
    while (1 - (1 - similarity ** (rows + 1)) ** (BINS // (rows + 1))) >= RECALL:
        rows += 1
    return BINS // rows, rows


def _gather(data: bytes, lengths: Numbers, lowest: npt.NDArray[np.uint32]) -> None:
    """Lower each bin of each document to the least hash of the shingles that fall into it."""
    starts = np.concatenate(([0], np.cumsum(lengths)))
    last = np.repeat(starts[1:] - SHINGLE_BYTES, lengths)
    document = np.repeat(np.arange(len(lengths)), lengths)
    count = len(data) - SHINGLE_BYTES + 1
    windows = np.ndarray(shape=(count,), dtype="<u8", buffer=data, strides=(1,))
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        inside = np.arange(start, stop) <= last[start:stop]
        hashes = _mixed(windows[start:stop][inside])
        bins = document[start:stop][inside] * BINS + (hashes >> np.uint64(57)).astype(np.int64)
        np.minimum.at(lowest, bins, hashes.astype(np.uint32))


def _mixed(x: UInt64s) -> UInt64s:
    """Spread eight bytes over 64 bits: two rounds of multiply and fold (as in Steele's SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _densified(lowest: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Fill empty bins from the next full one to the right, changed by the distance."""
    filled = lowest != _EMPTY
    twice = np.concatenate((filled, filled), axis=1)
    places = np.where(twice, np.arange(2 * BINS), 4 * BINS)
    following = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1][:, :BINS]
    distance = (following - np.arange(BINS)).astype(np.uint32)
    return np.take_along_axis(lowest, following % BINS, axis=1) + distance * np.uint32(0x9E3779B1)


def _similar_pairs(sketches: Sketches, similarity: float) -> npt.NDArray[np.int64]:
    """Return pairs (earlier, later) whose estimated similarity is enough, ordered by the later one."""
    bands, rows = bands_for(similarity)
    codes = np.zeros(0, dtype=np.int64)
    for band in range(bands):
        found = _candidates(sketches[:, band * rows : (band + 1) * rows])
        codes = np.union1d(codes, found[:, 1] * len(sketches) + found[:, 0])
    pairs = np.stack((codes % max(1, len(sketches)), codes // max(1, len(sketches))), axis=1)
    enough = np.zeros(len(pairs), dtype=np.bool_)
    for start in range(0, len(pairs), _CHUNK // 8):
        some = pairs[start : start + _CHUNK // 8]
        equal = (sketches[some[:, 0]] == sketches[some[:, 1]]).mean(axis=1)
        enough[start : start + _CHUNK // 8] = equal >= similarity
    return pairs[enough]


def _candidates(columns: Sketches) -> npt.NDArray[np.int64]:
    """Pair the documents that agree in all columns: each with the first LEADERS of its group.

    Pairing everyone with everyone would cost the square of the group, and boilerplate makes large groups.
    """
    keys = np.zeros(len(columns), dtype=np.uint64)
    for column in columns.T:
        keys = _mixed(keys + column.astype(np.uint64) + np.uint64(1))
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.arange(len(order))
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(order) else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(starts, place, 0)) if len(order) else place
    pairs = []
    for leader in range(LEADERS):
        behind = place > first + leader
        pairs.append(np.stack((order[(first + leader)[behind]], order[behind]), axis=1))
    return np.concatenate(pairs)


def _shingles(text: bytes) -> set[bytes]:
    text = text.ljust(SHINGLE_BYTES)
    return {text[i : i + SHINGLE_BYTES] for i in range(len(text) - SHINGLE_BYTES + 1)}
