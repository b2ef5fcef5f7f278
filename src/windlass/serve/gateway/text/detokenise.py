"""Tokens to text, piece by piece: never half a character, never half a stop string.

The pieces of an answer, joined, are the text of all its tokens decoded at once, however the tokens were
grouped. The same holds for stop strings: the answer ends where its whole text would be cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

MAX_HELD_TOKENS = 8
"""A character has at most four bytes; bytes that are not one after this many tokens never will be."""


class Detokenizer(Protocol):
    """The text of one answer, as its tokens arrive."""

    def push(self, token: int) -> str:
        """Return the text that this token completes."""
        ...

    def push_all(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        ...

    def flush(self) -> str:
        """Return the rest of the text when no token follows."""
        ...


class ByteTable(dict[int, bytes]):
    """The bytes of each token, read on first use."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def __missing__(self, token: int) -> bytes:
        found = self[token] = self._read(token)
        return found


class ByteDetokenizer:
    """For byte-level vocabularies: exact, and one dictionary look-up per token.

    Answers of one vocabulary share the `table`.
    """

    def __init__(self, table: ByteTable) -> None:
        self._bytes_of = table.__getitem__
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._bytes_of(token))

    def push_all(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes_of, tokens)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies: decodes a short window twice, with and without the new tokens.

    Decoders may treat the first token of a text differently (a dropped space), so the window keeps the
    last piece as context.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        self._held.append(token)
        text = self._decode(self._shown + self._held)
        if text.endswith("\ufffd") and len(self._held) < MAX_HELD_TOKENS:
            return ""
        return self._show(text)

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def flush(self) -> str:
        return self._show(self._decode(self._shown + self._held)) if self._held else ""

    def _show(self, text: str) -> str:
        before = self._decode(self._shown) if self._shown else ""
        self._shown, self._held = self._held, []
        return text[len(before) :]


class ShownText(msgspec.Struct, frozen=True):
    """Text that may be sent, and whether a stop string ends it."""

    text: str
    stopped: bool


class StopFilter:
    """Holds back text that may be the beginning of a stop string, and cuts where one is complete."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> ShownText:
        """Take the next text; return what can no longer become part of a stop string."""
        if not self._stops:
            return ShownText(text, False)
        held = self._held + text
        end = find_stop(held, self._stops)
        if end is not None:
            self._held = ""
            return ShownText(held[:end], True)
        keep = _possible_beginning(held, self._stops)
        self._held = held[len(held) - keep :]
        return ShownText(held[: len(held) - keep], False)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the text is cut: at the start of the stop string that is complete first."""
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _possible_beginning(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of the text that is a prefix of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
