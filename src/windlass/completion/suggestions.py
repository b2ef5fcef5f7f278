"""What is offered for a half-typed call. Places are [from, to) in the characters of the whole text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Span = tuple[int, int]
SERVER = "http://127.0.0.1:8000"
"""Where a call goes that names no server."""


@dataclass(frozen=True)
class Suggestion:
    """One thing that may stand at the cursor: what it is called, and what to put where."""

    text: str
    insert: str
    replace: Span
    type: str = ""
    range: str = ""
    default: str = ""
    about: str = ""


@dataclass(frozen=True)
class Fix:
    """A slip, and the text that sets it right."""

    about: str
    insert: str
    replace: Span


@dataclass(frozen=True)
class Explanation:
    """What is known of the field, option, header or path under the cursor."""

    name: str
    type: str = ""
    range: str = ""
    default: str = ""
    about: str = ""
    required: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suggestions:
    """All that can be said about a text with a cursor in it."""

    kind: str
    method: str
    path: str
    candidates: tuple[Suggestion, ...] = ()
    fixes: tuple[Fix, ...] = ()
    fixed: str = ""
    """The text with all fixes made."""
    explains: Explanation | None = None
    call: dict[str, str] = field(default_factory=dict)
    """The whole call, by language."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def put(text: str, change: Suggestion | Fix) -> str:
    """Return the text with one candidate taken, or one slip set right."""
    start, end = change.replace
    return text[:start] + change.insert + text[end:]


def put_all(text: str, fixes: Iterable[Fix]) -> str:
    """Set all slips right, from the end to the beginning; of two that overlap, the later in the text is made.

    Of two for one place, what the first one puts there stands first.
    """
    upto = len(text) + 1
    for _, fix in sorted(enumerate(fixes), key=lambda each: (each[1].replace, each[0]), reverse=True):
        if fix.replace[1] <= upto:
            text = put(text, fix)
            upto = fix.replace[0]
    return text
