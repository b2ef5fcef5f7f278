"""Tells in plain words why a member came back from a generation.

Input: the first line of what a library raised. Output: a line for people, in journals and on terminals.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 160
_SOURCE = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\]\s*")
"""Where in its source gloo met an error, as it writes before every message: `[/path/pair.cc:553] `."""
_CLOSED = re.compile(
    r"(?:closed by peer|reset by peer|broken pipe|read error|writev|connection refused)", re.IGNORECASE
)
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)
_PEER = re.compile(r"\[(?:::ffff:)?([0-9a-fA-F.:]+)\]:\d+|\(([\w.:-]+), \d+\)")
"""An address as gloo writes it, `[10.0.0.2]:1674`, or as the store of torch does, `(10.0.0.2, 1674)`."""


def plain_reason(text: str) -> str:
    """Name the peer that was lost; what is not known is told as it is, without paths, and cut."""
    told = _SOURCE.sub("", text).strip()
    peer = _PEER.search(told)
    if peer is not None and _CLOSED.search(told):
        return f"lost the connection to {peer[1] or peer[2]}"
    if peer is not None and _LATE.search(told):
        return f"waited too long for {peer[1] or peer[2]}"
    if len(told) > MAX_CHARACTERS:
        told = f"{told[: MAX_CHARACTERS - 3].rstrip()}..."
    return told or "failed without a message"
