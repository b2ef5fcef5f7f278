"""Reads SentencePiece's tokenizer.model, a protobuf message, without the library.

Input: the bytes of the file. Output: pieces, scores and the few settings that decide how a text is cut. The
field numbers are those of sentencepiece_model.proto; fields that are not needed are skipped. Word and
character models are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.models.vocabulary.scored_pieces import ScoredPieces
from windlass.models.vocabulary.special_tokens import NORMAL, UNKNOWN, UNUSED
from windlass.spec.errors import BadInput, Damaged

PIECES, TRAINER, NORMALISER = 1, 2, 3
UNIGRAM, BPE = 1, 2
MAX_PIECES = 1 << 22


@dataclass
class SentencePieceModel:
    """What a file says; the settings begin as the proto's defaults."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    algorithm: int = UNIGRAM
    prefix: bool = True
    charsmap: bytes = b""

    def pieces(self) -> ScoredPieces:
        """Return the vocabulary."""
        return ScoredPieces(
            tokens=self.tokens,
            scores=self.scores,
            merged=[kind in (NORMAL, UNUSED) for kind in self.kinds],
            unknown=self.kinds.index(UNKNOWN) if UNKNOWN in self.kinds else 0,
            prefix=self.prefix,
            charsmap=self.charsmap,
        )


def read_sentencepiece(data: bytes, where: str) -> SentencePieceModel:
    """Parse a tokenizer.model."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == PIECES and isinstance(value, bytes):
                _add_piece(model, value)
            elif number == TRAINER and isinstance(value, bytes):
                model.algorithm = int(dict(_fields(value)).get(3, UNIGRAM))
            elif number == NORMALISER and isinstance(value, bytes):
                settings = dict(_fields(value))
                model.prefix = bool(settings.get(3, True))
                charsmap = settings.get(2, b"")
                model.charsmap = charsmap if isinstance(charsmap, bytes) else b""
    except (IndexError, ValueError, struct.error, UnicodeDecodeError):
        raise Damaged(f"{where}: not a whole SentencePiece model", hint="fetch it again") from None
    if not model.tokens or len(model.tokens) > MAX_PIECES or len(set(model.tokens)) != len(model.tokens):
        raise Damaged(f"{where}: holds {len(model.tokens)} pieces, some of them twice or none at all")
    if model.algorithm not in (UNIGRAM, BPE):
        raise BadInput(
            f"{where}: a SentencePiece model of words or characters", hint="supported: unigram, BPE"
        )
    return model


def _add_piece(model: SentencePieceModel, data: bytes) -> None:
    piece = dict(_fields(data))
    text, score = piece.get(1, b""), piece.get(2, 0.0)
    model.tokens.append(text.decode() if isinstance(text, bytes) else "")
    model.scores.append(float(score) if isinstance(score, float) else 0.0)
    model.kinds.append(int(piece.get(3, NORMAL)))


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the fields of a message: number, and an integer, a float or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 1:
            at += 8
        elif wire == 2:
            length, at = _varint(data, at)
            if length > len(data) - at:
                raise ValueError("a field ends outside of its message")
            yield number, data[at : at + length]
            at += length
        elif wire == 5:
            yield number, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            raise ValueError(f"wire type {wire}")
    if at != len(data):
        raise ValueError("the last field ends outside of its message")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
