"""Explains in one line why a worker left a generation.

Input: the first line of an exception raised by a library. Output: a line for journals and terminals.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 160
_SOURCE = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\]\s*")
"""Source location that gloo puts before every message: `[/path/pair.cc:553] `."""
_CLOSED = re.compile(
    r"(?:closed by peer|reset by peer|broken pipe|read error|writev|connection refused)", re.IGNORECASE
)
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)
_PEER = re.compile(r"\[(?:::ffff:)?([0-9a-fA-F.:]+)\]:\d+|\(([\w.:-]+), \d+\)")
"""An address as gloo writes it, `[10.0.0.2]:1674`, or as torch's store does, `(10.0.0.2, 1674)`."""


def plain_reason(text: str) -> str:
    """Name the peer that was lost; what is not known is line as it is, without paths, and cut."""
    line = _SOURCE.sub("", text).strip()
    peer = _PEER.search(line)
    if peer is not None and _CLOSED.search(line):
        return f"lost the connection to {peer[1] or peer[2]}"
    if peer is not None and _LATE.search(line):
        return f"waited too long for {peer[1] or peer[2]}"
    if len(line) > MAX_CHARACTERS:
        line = f"{line[: MAX_CHARACTERS - 3].rstrip()}..."
    return line or "failed without a message"
