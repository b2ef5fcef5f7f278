"""Finishes a text that stops in the middle: a value, missing fields, quotes and brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windlass.completion.cursor import CursorPlace, Steps, find_spot
from windlass.completion.fixes import Checker
from windlass.completion.rank import by_habit, ranked, right_names
from windlass.completion.schema import Field
from windlass.completion.suggestions import Fix
from windlass.completion.tree import CLOSERS, QUOTES, TreeNode, written

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Closer:
    """Finishes a body; `checker` knows which values fields accept."""

    checker: Checker
    text: str

    def close(self, tree: TreeNode | None, root: Field) -> Fix | None:
        """Return the end of a body that has none, or None if it has one."""
        chain = list(_open_chain(tree, ()))
        if not chain:
            return None
        spot = find_spot(tree, len(self.text))
        start, insert = self._tail(spot, root)
        for depth, (node, path) in enumerate(reversed(chain)):
            if node.kind in ("object", "arguments"):
                own = spot if depth == 0 else None
                insert += self._lacking(node, path, root, own, f"{self.text[node.start : start]}{insert}")
            insert += CLOSERS[self.text[node.start]]
        lead = "\n" if self.checker.python and _ends_in_comment(self.text[:start]) else ""
        return Fix("it is not finished", lead + insert, (start, len(self.text)))

    def _tail(self, spot: CursorPlace, root: Field) -> tuple[int, str]:
        """Return the text that finishes the current token, and the position to insert it at."""
        match spot.role:
            case "key":
                return self._key(spot, root)
            case "colon":
                field = self.checker.api.inside(root, (*spot.path, spot.typed))
                return len(self.text), ": " + self._sample(field)
            case "value":
                return self._value(spot, root)
        return len(self.text), _unbalanced(self.text[spot.start :])

    def _key(self, spot: CursorPlace, root: Field) -> tuple[int, str]:
        owner = self.checker.api.inside(root, spot.path)
        if owner is not None and (spot.typed or spot.quote):
            meant = self._meant(owner, spot)
            if meant is not None:
                return spot.start, self.checker.pair(spot.holder, meant)
        elif owner is not None and self._will_go_on(owner, spot):
            return len(self.text), ""
        return self._without_comma(spot.start), ""

    def _meant(self, owner: Field, spot: CursorPlace) -> Field | None:
        """Return the field whose name is most likely being typed."""
        fields = self.checker.api.fields(owner)
        free = {each.name: each for each in fields if each.is_useful and each.name not in spot.keys}
        names = ranked(spot.typed, sorted(by_habit(list(free)), key=lambda name: not free[name].required))
        return free[names[0]] if names else None

    def _will_go_on(self, owner: Field, spot: CursorPlace) -> bool:
        """Whether a field will be added behind the last comma."""
        useful = [each.name for each in self.checker.api.fields(owner) if each.is_useful]
        lacking = self.checker.filler.missing(owner, right_names(spot.keys, useful))
        return any(each.name == "model" or not spot.places for each in lacking)

    def _value(self, spot: CursorPlace, root: Field) -> tuple[int, str]:
        field = self.checker.api.inside(root, spot.path)
        if spot.quote or spot.typed:
            return spot.start, self._finished(spot, field)
        if spot.holder == "list":
            wanted = spot.path[-1] == 0 and field is not None
            return (len(self.text), self._sample(field)) if wanted else (self._without_comma(spot.start), "")
        return len(self.text), self._sample(field)

    def _finished(self, spot: CursorPlace, field: Field | None) -> str:
        """Finish a value of which a part has been typed."""
        python = self.checker.python
        if field is not None and not spot.typed and field.values:
            return self._sample(field)
        if field is not None and (names := _countable(field, self.checker.filler.models)):
            found = ranked(spot.typed, [_shown(each) for each in names])
            if found:
                return next(written(each, python=python) for each in names if _shown(each) == found[0])
        if spot.quote:
            better = None
            if field is not None and not field.has("string"):
                better = self.checker.better(spot.typed, field)
            if len(spot.quote) == 3:
                return f"{spot.quote}{spot.typed}{spot.quote}"
            return written(spot.typed if better is None else better, python=python)
        number = _NUMBER.match(spot.typed)
        if number and (field is None or field.has("integer", "number")):
            return number[0]
        return spot.typed if python else self._sample(field)

    def _lacking(
        self, node: TreeNode, path: Steps, root: Field, spot: CursorPlace | None, before: str
    ) -> str:
        owner = self.checker.api.inside(root, path)
        if owner is None:
            return ""
        given = self.checker.right_names(node, owner)
        if spot is not None and spot.role == "key" and (spot.typed or spot.quote):
            meant = self._meant(owner, spot)
            given = [*spot.keys, *([meant.name] if meant is not None else [])]
        lacking = self.checker.filler.missing(owner, given)
        if any(entry.key is None for entry in node.entries):
            lacking = [each for each in lacking if each.name == "model"]
        pairs = ", ".join(self.checker.pair(node.kind, each) for each in lacking)
        ends = before.rstrip()[-1:]
        lead = "" if ends in ("{", "(", ",") else ", "
        space = " " if ends == "," and not before.endswith(" ") else ""
        return f"{lead}{space}{pairs}" if pairs else ""

    def _without_comma(self, at: int) -> int:
        """Return the place before the last comma, which JSON does not take before an end."""
        before = self.text[:at].rstrip()
        return len(before) - 1 if not self.checker.python and before.endswith((",", "，")) else at

    def _sample(self, field: Field | None) -> str:
        value: Any = self.checker.filler.sample(field) if field is not None else None
        return written(value, python=self.checker.python)


def _open_chain(node: TreeNode | None, path: Steps) -> list[tuple[TreeNode, Steps]]:
    """Return the unclosed objects and lists, from the outermost in, with the path to each."""
    if node is None or node.closed or node.kind not in ("object", "arguments", "list"):
        return []
    inner: list[tuple[TreeNode, Steps]] = []
    if node.kind == "list" and node.items and not node.comma:
        inner = _open_chain(node.items[-1], (*path, len(node.items) - 1))
    elif node.entries and not node.comma:
        last = node.entries[-1]
        step = str(last.key.value) if last.key is not None else len(node.entries) - 1
        inner = _open_chain(last.value, (*path, step))
    return [(node, path), *inner]


def _countable(field: Field, models: Sequence[str]) -> list[Any]:
    return [*(models if field.names_model else ()), *field.values]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else written(value)


def _unbalanced(code: str) -> str:
    """Return the quotes and brackets that a piece of code lacks."""
    open_: list[str] = []
    quote = ""
    for sign in code:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in ("'", '"'):
            quote = QUOTES[sign]
        elif sign in CLOSERS:
            open_.append(CLOSERS[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
    return quote + "".join(reversed(open_))


def _ends_in_comment(code: str) -> bool:
    comment = code.rpartition("\n")[2].rpartition("#")
    return bool(comment[1]) and '"' not in comment[2] and "'" not in comment[2]
