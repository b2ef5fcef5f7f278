"""Counts a corpus while it is written, and formats the counts.

Input: the tokens of each part as they pass. Output: a table of plain numbers, kept in corpus.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.corpus.shards import PartRecord
from windlass.spec.units import format_count

BAR = 40


class PartCount:
    """Counts one part."""

    def __init__(self, vocabulary: int) -> None:
        self.uses = np.zeros(vocabulary, dtype=np.int64)
        self.lengths: Counter[int] = Counter()
        self.record = PartRecord(0, 0, 0, ())

    def add(self, tokens: npt.NDArray[np.uint32], document_tokens: npt.NDArray[np.int64]) -> None:
        self.uses += np.bincount(tokens, minlength=len(self.uses))
        self.lengths.update(bucket_of(document_tokens).tolist())


def bucket_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the power of two at or below each length (of at least 1), as its exponent."""
    return np.frexp(lengths.astype(np.float64))[1].astype(np.int64) - 1


def describe(counts: Mapping[str, PartCount], vocabulary: int) -> dict[str, Any]:
    """Return the counts of all parts together."""
    records = [count.record for count in counts.values()]
    tokens, text_bytes = sum(r.tokens for r in records), sum(r.text_bytes for r in records)
    used = sum(count.uses for count in counts.values())
    lengths = sum((count.lengths for count in counts.values()), Counter[int]())
    return {
        "text_bytes": text_bytes,
        "tokens": tokens,
        "bytes_per_token": round(text_bytes / tokens, 4),
        "vocabulary": vocabulary,
        "vocabulary_used": int(np.count_nonzero(used)),
        "lengths": {str(2**bucket): lengths[bucket] for bucket in sorted(lengths)},
    }


def draw_lengths(lengths: Mapping[str, int]) -> list[str]:
    """Draw the histogram of document lengths, one line for each power of two."""
    if not lengths:
        return []
    present = [int(length) for length in lengths]
    highest = max(lengths.values())
    lines = []
    low = min(present)
    while low <= max(present):
        count = lengths.get(str(low), 0)
        lines.append(f"{_range(low):>15}  {_bar(count, highest):<{BAR}}  {count}")
        low *= 2
    return lines


def _range(low: int) -> str:
    return f"{format_count(low)} to {format_count(2 * low - 1)}" if low > 1 else "1"


def _bar(count: int, highest: int) -> str:
    """Draw in eighths of a character; a count above zero shows at least one eighth."""
    eighths = max(1 if count else 0, round(8 * BAR * count / highest))
    return "█" * (eighths // 8) + _PARTS[eighths % 8]


_PARTS: Sequence[str] = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
