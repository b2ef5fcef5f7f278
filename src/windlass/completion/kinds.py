"""Tells what kind of call a text is."""

from __future__ import annotations

import re

JSON, CURL, PYTHON, CLI = "json", "curl", "python", "cli"

_PROMPT = re.compile(r"\s*(?:\$ )?(?:\w+=\S* +)*")


def kind_of(text: str) -> str:
    """Return json, curl, python or cli; a few characters are enough, and none at all are JSON."""
    bare = _PROMPT.sub("", text, count=1)
    if not bare or bare[0] in "{[\"'“":
        return JSON
    word = re.match(r"[\w./-]*", bare)
    first = word[0] if word else ""
    for name, kind in (("curl", CURL), ("windlass", CLI)):
        if first == name or (name.startswith(first) and first == bare and first):
            return kind
    return PYTHON
