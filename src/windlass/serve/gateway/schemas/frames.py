"""Frames of a stream, written quickly: all frames of one answer differ in their text alone.

One frame is written by its model, with a mark for a text. What stands before and after the mark is then put
around every text, so that a token costs the writing of one JSON string, and the frame is byte for byte what
the model would have written.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

MARK = "\0"
"""No model, answer or request id holds a NUL."""

_write = msgspec.json.Encoder().encode
_MARKED = _write(MARK)


class QuickFrames:
    """Writes the frames of one answer."""

    def __init__(self, slow: Callable[[str], bytes]) -> None:
        self._before, _, self._after = slow(MARK).rpartition(_MARKED)

    def write(self, text: str) -> bytes:
        """Return the frame that carries this text."""
        return self._before + _write(text) + self._after
