"""Divides documents between training and validation.

Input: the facts about every kept document. Output: pieces of text, in document order, each in one
part. `hash` holds out whole documents by their fingerprint, so a text is on the same side in every build,
whatever else the corpus holds, and equal texts never lie on both sides. `tail` holds out the end of each.
`auto` takes whole documents where there are enough of them, and tails of a few long ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus

UInt64s = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

FEW_DOCUMENTS = 20


@dataclass(frozen=True)
class Pieces:
    """Runs of bytes in the cleaned text, one row each: where, how long, and of which document."""

    start: UInt64s
    text_bytes: UInt64s
    source: UInt64s
    number: UInt64s

    def __len__(self) -> int:
        return len(self.start)

    def only(self, mask: Mask) -> Pieces:
        return Pieces(self.start[mask], self.text_bytes[mask], self.source[mask], self.number[mask])


def divide(
    documents: Pieces, fingerprints: UInt64s, tail_bytes: UInt64s, corpus: Corpus
) -> tuple[Pieces, Pieces]:
    """Return (train, validation); neither is empty, or BadInput says what would help."""
    few = corpus.split == "auto" and len(documents) < FEW_DOCUMENTS
    if corpus.split == "tail" or few:
        return _by_tail(documents, tail_bytes, corpus.validation_share)
    if len(documents) < 2:
        raise BadInput(
            "the corpus holds a single document, so none can be held out for validation",
            hint='set split = "tail" to hold out its end, or document = "paragraph" to make more of it',
        )
    held = held_out(fingerprints, corpus.validation_share)
    return documents.only(~held), documents.only(held)


def held_out(fingerprints: UInt64s, share: float) -> Mask:
    """Mark the documents for validation: those whose fingerprint lies in the lowest `share` of all values.

    When that takes none or all, the lowest alone is held out, or the highest alone is kept.
    """
    high = fingerprints[:, 0]
    held: Mask = high.astype(np.float64) < share * 2.0**64
    if not held.any():
        held[np.argmin(high)] = True
    elif held.all():
        held[np.argmax(high)] = False
    return held


def tail_chars(chars: int, share: float) -> int:
    """Return how many characters at the end of a document are held out."""
    return chars - int(chars * (1 - share))


def _by_tail(documents: Pieces, tail_bytes: UInt64s, share: float) -> tuple[Pieces, Pieces]:
    head_bytes = documents.text_bytes - tail_bytes
    heads = Pieces(documents.start, head_bytes, documents.source, documents.number)
    tails = Pieces(documents.start + head_bytes, tail_bytes, documents.source, documents.number)
    train, validation = heads.only(head_bytes > 0), tails.only(tail_bytes > 0)
    if not len(train) or not len(validation):
        raise BadInput(
            f"the documents are too short to hold out {share:g} of each",
            hint='set split = "hash", or another validation_share',
        )
    return train, validation
