"""Parses server-sent events from bytes, however they are divided (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

BOM = "\ufeff"


@dataclass(frozen=True)
class ServerSentEvent:
    """One event; `id` is the newest that the stream has sent, "" before any."""

    data: str
    name: str = "message"
    id: str = ""


@dataclass
class EventReader:
    """Takes bytes as they arrive; returns every event that they complete.

    An incomplete event at the end of the stream is dropped, as the standard requires.
    """

    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _line: str = ""
    _begun: bool = False
    _data: list[str] = field(default_factory=list)
    _name: str = ""
    _id: str = ""

    def push(self, received: bytes) -> list[ServerSentEvent]:
        """Return the events that these bytes complete."""
        text = self._decoder.decode(received)
        if text and not self._begun:
            self._begun, text = True, text.removeprefix(BOM)
        found = (self._take(line) for line in self._lines(text))
        return [event for event in found if event is not None]

    def _lines(self, text: str) -> Iterator[str]:
        """Yield whole lines, ended by LF, CRLF or CR; a CR at the end waits for what follows it."""
        text = self._line + text
        start = 0
        while (end := _line_end(text, start)) is not None:
            yield text[start : end[0]]
            start = end[1]
        self._line = text[start:]

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._event()
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "data":
            self._data.append(value)
        elif key == "event":
            self._name = value
        elif key == "id" and "\0" not in value:
            self._id = value
        return None

    def _event(self) -> ServerSentEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        return ServerSentEvent("\n".join(data), name or "message", self._id) if data else None


def _line_end(text: str, start: int) -> tuple[int, int] | None:
    """Return where a line ends and where the next begins."""
    feed, carriage = text.find("\n", start), text.find("\r", start)
    if carriage < 0 or 0 <= feed < carriage:
        return None if feed < 0 else (feed, feed + 1)
    if carriage + 1 == len(text):
        return None  # a line feed may follow
    return carriage, carriage + (2 if text[carriage + 1] == "\n" else 1)
