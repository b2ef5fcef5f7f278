"""Reads a half-typed curl command: its address, headers and body, and which of them it ends in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from windlass.completion.addresses import split
from windlass.completion.shell_text import MappedText, Word, read_words

BODY = ("-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
HEADER, METHOD = ("-H", "--header"), ("-X", "--request")
TAKING = (
    *BODY, *HEADER, *METHOD, "-o", "--output", "-u", "--user", "-m", "--max-time", "-A", "--user-agent",
    "--connect-timeout", "--cacert", "--cert", "--key", "-w", "--write-out", "--retry",
)  # fmt: skip

Role = Literal["command", "option", "url", "header", "body", "method", "other", "next"]


@dataclass
class Command:
    """The parts of a curl command; `word` is the one that it ends in, and `role` what that is."""

    role: Role = "command"
    word: Word | None = None
    url: Word | None = None
    method: str = ""
    headers: list[Word] = field(default_factory=list)
    body: MappedText | None = None
    body_word: Word | None = None
    options: set[str] = field(default_factory=set)

    @property
    def base(self) -> str:
        return split(self.url.text)[0] if self.url is not None else ""

    @property
    def path(self) -> str:
        return split(self.url.text)[1].partition("?")[0] if self.url is not None else ""

    @property
    def header_names(self) -> list[str]:
        return [header_name(word.text) for word in self.headers]


def read_command(text: str) -> Command:
    """Read a command, as far as it goes."""
    found = Command()
    words = read_words(text)
    first = next((place for place, word in enumerate(words) if word.text == "curl"), None)
    ended = text[-1:].isspace()
    if first is None or (first + 1 == len(words) and not ended):
        found.word = words[-1] if words and not ended else None
        return found
    waiting = ""
    for word in words[first + 1 :]:
        waiting = _take(found, word, waiting)
    if words[-1].closed and ended:
        found.word, found.role = None, _awaited(waiting) if waiting else "next"
    return found


def _take(found: Command, word: Word, waiting: str) -> str:
    """Add a word to the command; return the option that now waits for its argument."""
    found.word, skip = word, 0
    if not waiting and word.text[:2] in ("-d", "-H", "-X") and len(word.text) > 2:
        waiting, skip = word.text[:2], 2
    if waiting:
        _give(found, word, waiting, skip)
        return ""
    if word.text.startswith("-") and not word.quote:
        found.role = "option"
        found.options.add(word.text)
        return word.text if word.text in TAKING else ""
    found.role = "url"
    found.url = found.url or word
    return ""


def _give(found: Command, word: Word, option: str, skip: int) -> None:
    found.role = _awaited(option)
    found.options.add(option)
    if option in BODY:
        found.body, found.body_word = word.piece(skip), word
    elif option in HEADER:
        found.headers.append(word)
    elif option in METHOD:
        found.method = word.text[skip:].upper()


def _awaited(option: str) -> Role:
    if option in BODY:
        return "body"
    return "header" if option in HEADER else "method" if option in METHOD else "other"


def header_name(text: str) -> str:
    """Return the name of a header as it is sent."""
    return text.removeprefix("-H").partition(":")[0].strip().lower()
