"""Decides which documents are kept, and in what form; a pure function of one block.

Input: a block of documents and the rules. Output: the cleaned text of those kept, with the facts that
later stages need (lengths, fingerprint, sketch), and a count of those dropped for each reason.
A block knows nothing of other blocks, so the result does not depend on how many processes share the work.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from windlass.corpus.duplicates import sketch
from windlass.corpus.readers import Document
from windlass.corpus.split import tail_chars
from windlass.spec.job import Corpus

UInt64s = npt.NDArray[np.uint64]

# Every control character but the tab and the line feed; carriage returns become line feeds before.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class CleanBlock:
    """The kept documents of a block. Arrays have one row per document."""

    text: bytes
    """UTF-8, one document after the other."""
    text_bytes: UInt64s
    tail_bytes: UInt64s
    """How many of its last bytes are held out when the split takes tails."""
    chars: UInt64s
    source: UInt64s
    number: UInt64s
    fingerprint: UInt64s
    """Two numbers that are equal for equal texts, white space aside."""
    sketches: npt.NDArray[np.uint16]
    dropped: Counter[str]


def clean_block(block: Sequence[Document], corpus: Corpus) -> CleanBlock:
    """Clean every document and drop those that the rules refuse."""
    rules, dropped = corpus.clean, Counter[str]()
    kept: list[Document] = []
    for document in block:
        text = encodable(document.text)
        text = normalised(text) if rules.normalize else text
        reason = refusal(text, rules.min_chars, rules.max_chars, rules.max_repetition)
        if reason is None:
            kept.append(Document(document.source, document.number, text))
        else:
            dropped[reason] += 1
    return _packed(kept, corpus, dropped)


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can spell but UTF-8 cannot."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def normalised(text: str) -> str:
    """Bring text to NFC with line feeds as line ends and no other control character but the tab."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def refusal(text: str, min_chars: int, max_chars: int | None, max_repetition: float) -> str | None:
    """Return why a document is dropped, or None when it is kept."""
    if not text or text.isspace():
        return "empty"
    if len(text) < min_chars:
        return "too short"
    if max_chars is not None and len(text) > max_chars:
        return "too long"
    return "repetitive" if repetition(text) > max_repetition else None


def repetition(text: str) -> float:
    """Return the share of the lines that repeat another one; blank lines do not count."""
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    return 1 - len(set(lines)) / len(lines) if lines else 0.0


def collapsed(text: str) -> bytes:
    """The form in which texts are compared: every run of white space is one space."""
    return " ".join(text.split()).encode()


def _packed(kept: Sequence[Document], corpus: Corpus, dropped: Counter[str]) -> CleanBlock:
    texts = [document.text.encode() for document in kept]
    plain = [collapsed(document.text) for document in kept]
    near = corpus.clean.duplicates == "near"
    return CleanBlock(
        text=b"".join(texts),
        text_bytes=_column([len(text) for text in texts]),
        tail_bytes=_column([_tail_bytes(document.text, corpus) for document in kept]),
        chars=_column([len(document.text) for document in kept]),
        source=_column([document.source for document in kept]),
        number=_column([document.number for document in kept]),
        fingerprint=_column([fingerprint(p) for p in plain]).reshape(-1, 2),
        sketches=sketch(plain if near else []),
        dropped=dropped,
    )


def fingerprint(plain: bytes) -> tuple[int, int]:
    """128 bits: among 10^12 documents, two different ones share them with probability below 10^-14."""
    number = xxhash.xxh3_128_intdigest(plain)
    return number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF


def _tail_bytes(text: str, corpus: Corpus) -> int:
    if corpus.split == "hash":
        return 0
    held = tail_chars(len(text), corpus.validation_share)
    return held if text.isascii() else len(text[len(text) - held :].encode())


def _column(values: Sequence[int] | Sequence[tuple[int, int]]) -> UInt64s:
    return np.array(values, dtype=np.uint64)
