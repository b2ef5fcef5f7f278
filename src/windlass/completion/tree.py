"""The parsed tree of a JSON or Python value, with positions; `json_text` builds it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

CLOSERS = {"{": "}", "[": "]", "(": ")"}
QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”", "‘": "’", "’": "’", "`": "`"}

Kind = Literal["object", "arguments", "list", "string", "number", "literal", "word", "code"]


@dataclass(eq=False)
class TreeNode:
    """A value at [start, end)."""

    kind: Kind
    start: int
    end: int
    closed: bool = True
    value: Any = None
    """The value of a string, number or literal; the characters of a word or of code."""
    entries: list[TreeEntry] = field(default_factory=list)
    """Of an object, and of a call's arguments, whose positions have no key."""
    items: list[TreeNode] = field(default_factory=list)
    comma: bool = False
    """Whether a comma follows the last entry or item."""
    quote: str = ""

    @property
    def keys(self) -> list[str]:
        return [str(entry.key.value) for entry in self.entries if entry.key is not None]


@dataclass(eq=False)
class TreeEntry:
    """A key and its value; `colon` is the position of the sign between them, -1 while there is none."""

    key: TreeNode | None
    value: TreeNode | None = None
    colon: int = -1

    @property
    def start(self) -> int:
        first = self.key or self.value
        return first.start if first is not None else self.colon

    @property
    def end(self) -> int:
        if self.value is not None:
            return self.value.end
        return self.colon + 1 if self.colon >= 0 else self.key.end if self.key is not None else 0


def written(value: Any, *, python: bool = False) -> str:
    """Write a value as the language has it."""
    if not python:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{written(k, python=True)}: {written(v, python=True)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(written(each, python=True) for each in value) + "]"
    return repr(value)


def plain(node: TreeNode | None) -> Any:
    """Return the value of a tree; unknown parts (a variable, a call) are None."""
    if node is None or node.kind in ("word", "code"):
        return None
    if node.kind in ("object", "arguments"):
        return {str(entry.key.value): plain(entry.value) for entry in node.entries if entry.key is not None}
    if node.kind == "list":
        return [plain(item) for item in node.items]
    return node.value
