"""Vocabularies of SentencePiece as tokenizer.json: BPE by scores with bytes as a fallback, and unigram.

Input: pieces with scores, from a GGUF file or from a tokenizer.model. Output: the JSON of a `tokenizers`
tokenizer without its added tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SPACE = "▁"
"""What SentencePiece writes for a space."""


@dataclass(frozen=True)
class ScoredPieces:
    """The pieces of a vocabulary, in the order of their ids."""

    tokens: Sequence[str]
    scores: Sequence[float]
    merged: Sequence[bool]
    """Whether a piece is made by merging; control, byte and user-defined pieces are not."""
    unknown: int = 0
    prefix: bool = True
    """Whether a text begins with a space that it does not have."""
    charsmap: bytes = b""
    """The compiled normalisation that SentencePiece stores; empty: none."""


def bpe_tokenizer(pieces: ScoredPieces) -> dict[str, Any]:
    """Return a BPE tokenizer: of all pairs of pieces that make a piece, the best score merges first."""
    model = {
        "type": "BPE", "dropout": None, "unk_token": pieces.tokens[pieces.unknown],
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
        "byte_fallback": "<0x00>" in pieces.tokens, "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(pieces.tokens)},
        "merges": list(_merges(pieces)),
    }  # fmt: skip
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = {"type": "Prepend", "prepend": SPACE}
    steps = [*_precompiled(pieces), *([prefix] if pieces.prefix else []), spaces]
    normalizer = {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else spaces
    return _tokenizer(model, normalizer, None, _decoder(strip=pieces.prefix))


def unigram_tokenizer(pieces: ScoredPieces) -> dict[str, Any]:
    """Return a unigram tokenizer, which takes the most likely of all ways to cut a text."""
    vocabulary = [[token, score] for token, score in zip(pieces.tokens, pieces.scores, strict=True)]
    model = {
        "type": "Unigram",
        "unk_id": pieces.unknown,
        "vocab": vocabulary,
        "byte_fallback": "<0x00>" in pieces.tokens,
    }
    several = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    steps = [*_precompiled(pieces), several]
    scheme = "always" if pieces.prefix else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    normalizer = {"type": "Sequence", "normalizers": steps}
    return _tokenizer(model, normalizer, space, space)


def _precompiled(pieces: ScoredPieces) -> list[dict[str, Any]]:
    if not pieces.charsmap:
        return []
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(pieces.charsmap).decode()}]


def _merges(pieces: ScoredPieces) -> Iterator[list[str]]:
    """Yield the pairs in the order of their results' scores; equal ones by the ids of their parts."""
    ids = {
        token: number
        for number, (token, merged) in enumerate(zip(pieces.tokens, pieces.merged, strict=True))
        if merged
    }
    for number in sorted(ids.values(), key=lambda number: (-pieces.scores[number], number)):
        token = pieces.tokens[number]
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        for left, right in sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]])):
            yield [left, right]


def _decoder(*, strip: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _tokenizer(model: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip
