"""Tokens that are found before a text is cut, and those put around it, as tokenizer.json has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens, as SentencePiece and GGUF number them."""


def added_token(number: int, token: str, *, special: bool) -> dict[str, Any]:
    """Return one entry of `added_tokens`."""
    return {
        "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": special,
    }  # fmt: skip


def added_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the tokens of a vocabulary that are found before anything else happens to a text."""
    return [
        added_token(number, token, special=kind != USER_DEFINED)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED, UNKNOWN)
    ]


def surrounding(first: tuple[str, int] | None, last: tuple[str, int] | None) -> dict[str, Any]:
    """Return the post-processor that puts one token before a text, one after it, or both."""

    def sequence(letter: str, kind: int) -> list[dict[str, Any]]:
        text = [{"Sequence": {"id": letter, "type_id": kind}}]
        before = [{"SpecialToken": {"id": first[0], "type_id": kind}}] if first else []
        after = [{"SpecialToken": {"id": last[0], "type_id": kind}}] if last else []
        return before + text + after

    used = [each for each in (first, last) if each]
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used
        },
    }
