"""The position of the cursor in an unfinished value: before a key, in a value, or behind one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from windlass.completion.tree import Kind, TreeEntry, TreeNode, plain

Role = Literal["key", "colon", "value", "after", "done"]
Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class CursorPlace:
    """The position of the cursor in a tree, which ends at the cursor.

    `path` leads to the value where the role is "value", and to the holder otherwise.
    """

    role: Role
    path: Steps
    start: int
    """Where the token being typed begins; the cursor's own position if there is none."""
    typed: str = ""
    quote: str = ""
    holder: Kind = "object"
    keys: tuple[str, ...] = ()
    """Those that the holder has already."""
    comma: bool = True
    """Whether a comma, or an opening bracket, is before the cursor."""
    places: int = 0
    """Positional arguments before the cursor."""
    like: Any = None
    """What the first item of the list is, where the holder is one that has items."""


def find_spot(node: TreeNode | None, end: int, path: Steps = ()) -> CursorPlace:
    """Return the place at the end of a text whose tree this is."""
    if node is None:
        return CursorPlace("value", path, end)
    if node.kind in ("object", "arguments") and not node.closed:
        return _in_object(node, end, path)
    if node.kind == "list" and not node.closed:
        return _in_list(node, end, path)
    if _is_open(node, end):
        return CursorPlace("value", path, node.start, str(node.value), node.quote)
    return CursorPlace("done", path, end)


def _in_object(node: TreeNode, end: int, path: Steps) -> CursorPlace:
    here = CursorPlace("key", path, end, holder=node.kind, keys=tuple(node.keys), places=_places(node))
    if not node.entries or node.comma:
        return here
    last = node.entries[-1]
    if last.key is None:
        return _placed(last, here, end)
    if last.colon < 0:
        role: Role = "colon" if last.key.closed and last.key.kind == "string" else "key"
        typed, quote = str(last.key.value), last.key.quote
        return replace(here, role=role, start=last.key.start, typed=typed, quote=quote, keys=here.keys[:-1])
    inner = find_spot(last.value, end, (*path, str(last.key.value)))
    return inner if inner.role != "done" else replace(here, role="after", comma=False)


def _placed(last: TreeEntry, here: CursorPlace, end: int) -> CursorPlace:
    """Look into an argument without a name."""
    inner = find_spot(last.value, end, (*here.path, here.places - 1))
    return inner if inner.role != "done" else replace(here, role="after", comma=False)


def _in_list(node: TreeNode, end: int, path: Steps) -> CursorPlace:
    like = plain(node.items[0]) if node.items else None
    if not node.items or node.comma:
        return CursorPlace("value", (*path, len(node.items)), end, holder="list", like=like)
    inner = find_spot(node.items[-1], end, (*path, len(node.items) - 1))
    return (
        inner
        if inner.role != "done"
        else CursorPlace("after", path, end, holder="list", comma=False, like=like)
    )


def _places(node: TreeNode) -> int:
    return sum(1 for entry in node.entries if entry.key is None)


def _is_open(node: TreeNode, end: int) -> bool:
    """Return whether a value may continue: its quote is missing, or it is a word at the end of the text."""
    if node.kind == "string":
        return not node.closed
    return node.kind == "word" and node.end == end
