"""The results of completion. Positions are [from, to) in the characters of the whole text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Span = tuple[int, int]
SERVER = "http://127.0.0.1:8000"
"""Where a call goes that names no server."""


@dataclass(frozen=True)
class Suggestion:
    """One completion: its label, and which text to insert where."""

    text: str
    insert: str
    replace: Span
    type: str = ""
    range: str = ""
    default: str = ""
    about: str = ""


@dataclass(frozen=True)
class Fix:
    """A mistake, and the text that corrects it."""

    about: str
    insert: str
    replace: Span


@dataclass(frozen=True)
class Explanation:
    """The documentation of the field, option, header or path under the cursor."""

    name: str
    type: str = ""
    range: str = ""
    default: str = ""
    about: str = ""
    required: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suggestions:
    """All results for a text with a cursor in it."""

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
    """Return the text with one suggestion or one fix applied."""
    start, end = change.replace
    return text[:start] + change.insert + text[end:]


def put_all(text: str, fixes: Iterable[Fix]) -> str:
    """Apply all fixes, from the end to the beginning; of two that overlap, the later in the text is applied.

    If two insert at one position, the text of the first comes first.
    """
    upto = len(text) + 1
    for _, fix in sorted(enumerate(fixes), key=lambda each: (each[1].replace, each[0]), reverse=True):
        if fix.replace[1] <= upto:
            text = put(text, fix)
            upto = fix.replace[0]
    return text
