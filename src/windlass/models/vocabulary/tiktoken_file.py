"""Reads tiktoken files: one token in base64 and its rank on each line.

Input: the bytes of the file and the name of its pre-tokenizer, which the file does not hold. Output: a
byte-level BPE tokenizer as tokenizer.json. The merges follow from the ranks: a token is made of the two parts
that remain when only merges of lower rank are done.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from windlass.models.vocabulary.pretokenizers import pre_tokenizer_of
from windlass.spec.errors import Damaged

PATTERNS = {"qwen": "qwen2", "cl100k": "dbrx", "o200k": "gpt-4o", "llama": "llama-bpe"}
"""Pre-tokenizers by what the name of the file, or its model, contains."""
MAX_TOKEN_BYTES = 1024


def is_tiktoken(data: bytes) -> bool:
    """Whether a file is a list of tokens in base64; a SentencePiece model is not."""
    token, _, rank = data[:2048].split(b"\n", 1)[0].partition(b" ")
    return rank.strip().isdigit() and _decoded(token) is not None


def tiktoken_tokenizer(data: bytes, pre: str, where: str) -> dict[str, Any]:
    """Return the tokenizer without special tokens."""
    ranks = _ranks(data, where)
    letters = byte_letters()
    words = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _parts(ranks, token, rank)
            if len(parts) == 2:
                merges.append([words[parts[0]], words[parts[1]]])
    known = pre_tokenizer_of(pre, where)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
        "vocab": {words[token]: rank for token, rank in ranks.items()}, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": known.normalizer, "pre_tokenizer": known.steps, "post_processor": level,
        "decoder": level, "model": model,
    }  # fmt: skip


def byte_letters() -> list[str]:
    """Return the letter that byte-level vocabularies write for each byte: itself, where it can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


def _ranks(data: bytes, where: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        text, _, rank = line.partition(b" ")
        token = _decoded(text)
        if token is None or not rank.strip().isdigit() or token in ranks or len(token) > MAX_TOKEN_BYTES:
            raise Damaged(f"{where}, line {number}: is not a new token in base64 and its rank")
        ranks[token] = int(rank)
    if any(bytes([byte]) not in ranks for byte in range(256)) or len(set(ranks.values())) != len(ranks):
        raise Damaged(f"{where}: a byte has no token, or two tokens have one rank")
    return ranks


def _decoded(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) or None
    except binascii.Error:
        return None


def _parts(ranks: dict[bytes, int], token: bytes, limit: int) -> list[bytes]:
    """Merge the bytes of a token by ranks below its own."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 1:
        best, at = min((ranks.get(parts[n] + parts[n + 1], limit), n) for n in range(len(parts) - 1))
        if best >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
