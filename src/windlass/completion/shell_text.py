"""Splits a shell command into words, finished or not, and keeps the position of each of their characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SPECIAL = re.compile(r"[\s\"'\\$`&|;<>(){}*?!#~]")


@dataclass(frozen=True)
class MappedText:
    """A text inside another: its content, and the position of each of its characters (and its end) there."""

    text: str
    offsets: Sequence[int]
    quote: str = ""
    """The shell's quote that is open around it."""

    def put(self, insert: str, replace: tuple[int, int]) -> tuple[str, tuple[int, int]]:
        """Convert a change of this text to a change of the surrounding text."""
        start, end = (self.offsets[min(place, len(self.text))] for place in replace)
        return self.escaped(insert), (start, max(start, end))

    def escaped(self, text: str) -> str:
        if self.quote == "'":
            return text.replace("'", "'\\''")
        if self.quote == '"':
            return re.sub(r"([\"\\$`])", r"\\\1", text)
        return text


@dataclass(frozen=True)
class Word:
    """A word at [start, end); `quote` is what it was opened with, and `closed` whether that was ended."""

    text: str
    start: int
    end: int
    offsets: tuple[int, ...]
    quote: str = ""
    closed: bool = True

    def piece(self, skip: int = 0) -> MappedText:
        """Return what the word says, without its first characters."""
        return MappedText(self.text[skip:], self.offsets[skip:], self.quote)


def whole_text(text: str) -> MappedText:
    """Return a text as a piece of itself."""
    return MappedText(text, range(len(text) + 1))


def read_words(text: str) -> list[Word]:
    """Split a line into words; a quote that is not ended takes all that follows."""
    words: list[Word] = []
    at = 0
    while True:
        at = _next_word(text, at)
        if at >= len(text):
            return words
        word = _raw_body(text, at) or _word(text, at)
        words.append(word)
        at = max(word.end, at + 1)


def quoted(text: str) -> str:
    """Quote a word where the shell would not take it as it is."""
    return "'" + text.replace("'", "'\\''") + "'" if SPECIAL.search(text) or not text else text


def _next_word(text: str, at: int) -> int:
    """Skip blanks, and ends of lines that are continued."""
    while at < len(text) and (text[at].isspace() or text.startswith(("\\\n", "\\\r"), at)):
        at += 1 if text[at].isspace() else 2
    return at


def _raw_body(text: str, start: int) -> Word | None:
    """Read an unquoted JSON object: no shell would accept it, but people type it."""
    if text[start] != "{":
        return None
    depth, quote, at = 0, "", start
    while at < len(text):
        sign = text[at]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += (sign in "{[") - (sign in "}]")
        at += 1
        if depth == 0:
            break
    return Word(text[start:at], start, at, tuple(range(start, at + 1)), "", closed=True)


def _word(text: str, start: int) -> Word:
    parts: list[str] = []
    offsets: list[int] = []
    quote = first = ""
    at = start
    while at < len(text):
        sign = text[at]
        if not quote and sign.isspace():
            break
        if sign == quote:
            quote = ""
        elif not quote and sign in "\"'":
            quote = sign
            first = first or sign
        else:
            if (
                sign == "\\"
                and quote != "'"
                and at + 1 < len(text)
                and (not quote or text[at + 1] in '"\\$`\n')
            ):
                at += 1
                sign = "" if text[at] == "\n" else text[at]
            if sign:
                parts.append(sign)
                offsets.append(at)
        at += 1
    end = at if quote or not parts else offsets[-1] + 1
    return Word("".join(parts), start, at, (*offsets, end), quote or first, closed=not quote)
