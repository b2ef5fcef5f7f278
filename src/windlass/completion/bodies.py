"""A JSON body inside any text: its operation, suggestions in it, and the complete call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from windlass.completion.body import BodyCompletion, fixes_of
from windlass.completion.cursor import CursorPlace, find_spot
from windlass.completion.fill import Filler
from windlass.completion.json_text import read_value
from windlass.completion.schema import Field, Operation
from windlass.completion.shell_text import MappedText
from windlass.completion.suggestions import Explanation, Fix, Suggestion
from windlass.completion.tree import TreeNode
from windlass.completion.write import FullCall, write_all

T = TypeVar("T", Suggestion, Fix)


@dataclass(frozen=True)
class BodySuggestions:
    """The results for a body, with positions in the surrounding text."""

    candidates: tuple[Suggestion, ...]
    fixes: tuple[Fix, ...]
    explains: Explanation | None
    operation: Operation | None


def in_body(piece: MappedText, cursor: int, filler: Filler, operation: Operation | None) -> BodySuggestions:
    """Complete a JSON body; without an operation, it is guessed from the keys."""
    tree, slips = read_value(piece.text)
    spot = find_spot(read_value(piece.text[:cursor])[0], cursor)
    if operation is None or operation.body is None:
        chosen, others = guess(tree, spot, filler)
    else:
        chosen, others = operation, ()
    if chosen is None or chosen.body is None:
        return BodySuggestions((), (), None, chosen)
    if tree is None:
        return BodySuggestions((_opening(piece, cursor),), (), None, chosen)
    body = BodyCompletion(piece.text, cursor, with_keys(spot, tree), chosen.body, filler, others=others)
    candidates = body.candidates()
    fixes = [*slips, *fixes_of(piece.text, tree, chosen.body, filler, python=False)]
    return BodySuggestions(
        tuple(_moved(each, piece) for each in candidates),
        tuple(_moved(each, piece) for each in fixes),
        body.explains(candidates),
        chosen,
    )


def guess(
    tree: TreeNode | None, spot: CursorPlace, filler: Filler
) -> tuple[Operation | None, tuple[Field, ...]]:
    """Return the likeliest operation of a body, and the other possible ones."""
    typed = spot.typed if spot.role == "key" and not spot.path else ""
    keys = [key for key in (tree.keys if tree is not None else ()) if key != typed]
    fitting = filler.api.fitting(keys, typed)
    if not fitting:
        return None, ()
    others = [each.body for each in fitting[1:] if each.path.startswith("/v1/") and each.body is not None]
    fits = [each for each in others if set(keys) <= {field.name for field in filler.api.fields(each)}]
    return fitting[0], tuple(fits)


def with_keys(spot: CursorPlace, tree: TreeNode | None) -> CursorPlace:
    """Add the keys behind the cursor to those before it."""
    node = tree
    for part in spot.path if spot.role != "value" else ():
        node = _child(node, part)
    if node is None or not node.entries or spot.role == "value":
        return spot
    later = [entry.key for entry in node.entries if entry.key is not None and entry.key.start > spot.start]
    return replace(spot, keys=(*spot.keys, *(str(key.value) for key in later if key.value not in spot.keys)))


def whole_call(
    operation: Operation | None,
    body: Any,
    filler: Filler,
    server: str,
    *,
    path: str = "",
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write the call with a body that the server accepts."""
    if operation is None:
        return {}
    whole = None
    if operation.body is not None:
        whole = filler.filled(body if isinstance(body, dict) else {}, operation.body)
    names = path if path and filler.api.find(path, operation.method) == operation else operation.path
    if "{model}" in names and filler.models:
        names = names.replace("{model}", filler.models[0])
    url = server.removesuffix("/") + names
    return write_all(FullCall(operation.method, url, whole, headers or {}, operation.needs_key))


def _child(node: TreeNode | None, part: str | int) -> TreeNode | None:
    if node is None:
        return None
    if isinstance(part, int):
        return node.items[part] if part < len(node.items) else None
    return next(
        (entry.value for entry in node.entries if entry.key is not None and entry.key.value == part), None
    )


def _opening(piece: MappedText, cursor: int) -> Suggestion:
    insert, place = piece.put("{", (0, cursor))
    return Suggestion("{", insert, place, "object", about="the body begins")


def _moved(change: T, piece: MappedText) -> T:
    insert, place = piece.put(change.insert, change.replace)
    return replace(change, insert=insert, replace=place)
