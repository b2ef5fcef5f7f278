"""All documents that cleaning keeps, for the later stages.

Their text is in one file on disk; the facts about each document (under 400 bytes) are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windlass.corpus.clean import CleanBlock, collapsed
from windlass.corpus.duplicates import Mask, Sketches, first_of_equals, first_of_similar
from windlass.corpus.split import Pieces
from windlass.corpus.tokenise import mapped
from windlass.spec.job import Clean

UInt64s = npt.NDArray[np.uint64]

SAMPLE_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Gathered:
    """Documents, one row each, and why the others were dropped."""

    path: Path
    pieces: Pieces
    tail_bytes: UInt64s
    chars: UInt64s
    fingerprint: UInt64s
    sketches: Sketches
    dropped: Counter[str]

    def __len__(self) -> int:
        return len(self.pieces)

    def only(self, mask: Mask, reason: str) -> Gathered:
        """Keep the marked documents; the others are dropped for `reason`."""
        gone = int(np.count_nonzero(~mask))
        return replace(
            self,
            pieces=self.pieces.only(mask),
            tail_bytes=self.tail_bytes[mask],
            chars=self.chars[mask],
            fingerprint=self.fingerprint[mask],
            sketches=self.sketches[mask] if len(self.sketches) else self.sketches,
            dropped=self.dropped + Counter({reason: gone}),
        )

    def without_duplicates(self, rules: Clean) -> Gathered:
        """Keep the first of equal documents, and of nearly equal ones when the rules say so."""
        if rules.duplicates == "keep":
            return self
        found = self.only(first_of_equals(self.fingerprint), "duplicate")
        if rules.duplicates == "exact":
            return found
        with mapped(found.path) as data:

            def text_of(row: int) -> bytes:
                start, length = int(found.pieces.start[row]), int(found.pieces.text_bytes[row])
                return collapsed(data[start : start + length].decode())

            first = first_of_similar(found.sketches, rules.similarity, found.pieces.text_bytes, text_of)
        return replace(found.only(first, "near duplicate"), sketches=found.sketches[:0])

    def texts(self, pieces: Pieces) -> Iterator[str]:
        """Yield the text of pieces, one after the other."""
        with mapped(self.path) as data:
            for start, length in zip(pieces.start.tolist(), pieces.text_bytes.tolist(), strict=True):
                yield data[start : start + length].decode()

    def sample(self, pieces: Pieces, max_bytes: int) -> Iterator[str]:
        """Yield about `max_bytes` of text, taken evenly from everywhere in the pieces."""
        total = int(pieces.text_bytes.sum())
        seen = taken = 0
        for text in self.texts(pieces):
            for start in range(0, len(text), SAMPLE_PIECE_BYTES):
                part = text[start : start + SAMPLE_PIECE_BYTES]
                size = len(part.encode())
                seen += size
                # Bresenham's rule: take a part whenever less than its due share has been taken so far.
                if taken * total < seen * max_bytes:
                    taken += size
                    yield part


def gather(blocks: Iterator[CleanBlock], path: Path, skipped: Counter[str]) -> Gathered:
    """Write the text of all blocks into one file and put their rows together."""
    dropped, rows = Counter[str](), list[CleanBlock]()
    with path.open("wb") as file:
        for block in blocks:
            file.write(block.text)
            dropped += block.dropped
            rows.append(replace(block, text=b""))
    text_bytes = _joined([block.text_bytes for block in rows])
    return Gathered(
        path=path,
        pieces=Pieces(
            np.cumsum(text_bytes) - text_bytes,
            text_bytes,
            _joined([block.source for block in rows]),
            _joined([block.number for block in rows]),
        ),
        tail_bytes=_joined([block.tail_bytes for block in rows]),
        chars=_joined([block.chars for block in rows]),
        fingerprint=_joined([block.fingerprint.reshape(-1) for block in rows]).reshape(-1, 2),
        sketches=np.concatenate([b.sketches for b in rows]) if rows else np.zeros((0, 0), np.uint16),
        # Adding counters leaves out reasons with no documents.
        dropped=dropped + skipped,
    )


def _joined(columns: list[UInt64s]) -> UInt64s:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.uint64)
