"""Mistakes in a body that need no guessing: a number in quotes, a misspelt name, a value out of range.

Input: the tree of a body and the field that it should be. Output: fixes, in the places of the body's text.
What is being typed at this moment is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from windlass.completion.fill import Filler, clamped, takes
from windlass.completion.rank import MAX_WRONG, right_name, right_names
from windlass.completion.schema import ApiDocument, Field
from windlass.completion.suggestions import Fix
from windlass.completion.tree import TreeEntry, TreeNode, plain, written

YES, NO = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True)
class Checker:
    """Checks a body against the document."""

    filler: Filler
    python: bool
    end: int
    """Where the text ends; a word that ends there is still being typed."""
    known: frozenset[str] = frozenset()
    """Further names that are valid at the top level: arguments of a client."""
    compared: list[str] = dataclass_field(default_factory=list)
    """Wrong names so far; only so many are looked up."""

    @property
    def api(self) -> ApiDocument:
        return self.filler.api

    def check(self, node: TreeNode | None, field: Field, *, top: bool = True) -> list[Fix]:
        """Return what is wrong with a value, and below it."""
        if node is None or node.kind in ("word", "code"):
            return []
        if node.kind in ("object", "arguments") and field.has("object"):
            return self._object(node, field, top=top)
        if node.kind == "list" and field.has("array"):
            item = self.api.inside(field, (0,))
            inner = node.items if item is not None else []
            return [fix for each in inner if item is not None for fix in self.check(each, item, top=False)]
        return self._value(node, field)

    def _object(self, node: TreeNode, field: Field, *, top: bool) -> list[Fix]:
        fields = {each.name: each for each in self.api.fields(field)}
        if not fields:
            return self._open_object(node, field)
        found: list[Fix] = []
        used = {key for key in node.keys if key in fields}
        for entry in node.entries:
            if entry.key is not None and not (top and entry.key.value in self.known):
                found += self._entry(node, entry, fields, used, is_open=self.api.is_open(field))
        if node.closed:
            found += self._missing(node, field, used)
        return found

    def _open_object(self, node: TreeNode, field: Field) -> list[Fix]:
        """Check the values of an object whose keys only a pattern describes."""
        named = [(entry, str(entry.key.value)) for entry in node.entries if entry.key is not None]
        inner = [(entry, self.api.inside(field, (name,))) for entry, name in named]
        return [fix for entry, each in inner if each for fix in self.check(entry.value, each, top=False)]

    def _entry(
        self, node: TreeNode, entry: TreeEntry, fields: dict[str, Field], used: set[str], *, is_open: bool
    ) -> list[Fix]:
        assert entry.key is not None
        name = str(entry.key.value)
        field = fields.get(name)
        if entry.colon < 0 or (field is None and is_open):
            return []
        if field is None:
            return self._unknown(
                node, entry, name, {key: fields[key] for key in fields if key not in used}, used
            )
        value = plain(entry.value)
        if not field.is_useful and value is not None and not takes(field, value):
            return [self._removed(node, entry, f"'{name}' is not supported here; remove it")]
        return self.check(entry.value, field, top=False) if field.is_useful else []

    def _unknown(
        self, node: TreeNode, entry: TreeEntry, name: str, free: dict[str, Field], used: set[str]
    ) -> list[Fix]:
        """Correct the name of a key, or remove it."""
        near = self._near(name, [each for each, field in free.items() if field.is_useful])
        if near is None or entry.key is None:
            return [self._removed(node, entry, f"'{name}' is unknown here; leave it out")]
        used.add(near)
        right = near if node.kind == "arguments" else written(near)
        renamed = Fix(f"'{name}' is unknown here; '{near}' is meant", right, (entry.key.start, entry.key.end))
        return [renamed, *self.check(entry.value, free[near], top=False)]

    def _near(self, name: str, names: list[str]) -> str | None:
        self.compared.append(name)
        return right_name(name, names) if len(self.compared) <= MAX_WRONG else None

    def _removed(self, node: TreeNode, entry: TreeEntry, about: str) -> Fix:
        """Remove an entry, together with the comma that separates it from a neighbour."""
        place = node.entries.index(entry)
        if place + 1 < len(node.entries):
            return Fix(about, "", (entry.start, node.entries[place + 1].start))
        start = node.entries[place - 1].end if place else entry.start
        return Fix(about, "", (start, entry.end))

    def _missing(self, node: TreeNode, field: Field, used: set[str]) -> list[Fix]:
        lacking = self.filler.missing(field, list(used))
        places = sum(1 for entry in node.entries if entry.key is None)
        lacking = [each for each in lacking if each.name == "model"] if places else lacking
        if not lacking:
            return []
        names = ", ".join(f"'{each.name}'" for each in lacking)
        added = ", ".join(self.pair(node.kind, each) for each in lacking)
        at = node.entries[-1].end if node.entries else node.start + 1
        about = f"{names} {'is' if len(lacking) == 1 else 'are'} missing"
        return [Fix(about, f", {added}" if node.entries else added, (at, at))]

    def right_names(self, node: TreeNode, field: Field) -> list[str]:
        """Return the keys of an object after correction."""
        return right_names(node.keys, [each.name for each in self.api.fields(field) if each.is_useful])

    def pair(self, holder: str, field: Field) -> str:
        """Write a field with a value that it takes."""
        value = written(self.filler.sample(field), python=self.python)
        return f"{field.name}={value}" if holder == "arguments" else f"{written(field.name)}: {value}"

    def _value(self, node: TreeNode, field: Field) -> list[Fix]:
        value = plain(node)
        if not node.closed or (node.kind == "word" and node.end == self.end):
            return []
        if takes(field, value) and not (field.names_model and self._is_unknown_model(value)):
            return []
        better = self.better(value, field)
        if better is None or (better == value and type(better) is type(value)):
            return []
        shown = written(better, python=self.python)
        about = f"'{field.name}' takes {field.type}"
        if isinstance(value, int | float) and isinstance(better, int | float) and field.range:
            about += f", {field.range}"
        elif field.names_model:
            about = f"'{value}' is not served here; '{better}' is meant"
        return [Fix(about, shown, (node.start, node.end))]

    def _is_unknown_model(self, value: Any) -> bool:
        return bool(self.filler.models) and value not in self.filler.models

    def better(self, value: Any, field: Field) -> Any:
        """Return the valid value that an invalid one certainly stands for, or None."""
        if field.names_model and isinstance(value, str):
            return self._near(value, list(self.filler.models))
        found = [self._retyped(value, field), self._wrapped(value, field)]
        return next((each for each in found if each is not None and takes(field, each)), None)

    def _retyped(self, value: Any, field: Field) -> Any:
        if isinstance(value, str):
            return self._from_text(value, field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return (field.has("string") and isinstance(value, bool) and str(value).lower()) or None
        for arm in field.arms:
            if arm.get("type") in ("integer", "number"):
                whole = int(value) if arm["type"] == "integer" else value
                return clamped(whole, arm)
        if field.has("boolean") and value in (0, 1):
            return bool(value)
        return str(value) if field.has("string") and not field.values else None

    def _from_text(self, value: str, field: Field) -> Any:
        if field.has("boolean") and value.strip().lower() in YES | NO:
            return value.strip().lower() in YES
        if field.has("integer", "number"):
            try:
                number = float(value.strip())
            except ValueError:
                return None
            if abs(number) > 1e15:
                return None
            return self._retyped(int(number) if number == int(number) else number, field)
        return self._near(value, [each for each in field.values if isinstance(each, str)])

    def _wrapped(self, value: Any, field: Field) -> Any:
        """Put one value where a list of such is wanted; a text becomes the text of the only object."""
        item = self.api.inside(field, (0,)) if field.has("array") else None
        if item is None or isinstance(value, list):
            return None
        if isinstance(value, str) and item.has("object") and not item.has("string"):
            sample = self.filler.sample(item)
            inner = [each for each in self.api.fields(item) if each.required and each.has("string")]
            free = next((each.name for each in inner if not each.values), None)
            return [sample | {free: value}] if free is not None and isinstance(sample, dict) else None
        return [value] if takes(item, value) else None
