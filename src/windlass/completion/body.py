"""Suggestions inside a body: unused keys, values that the field accepts, brackets.

Input: the text of a body up to the cursor, the text behind it, and the schema of the body.
Output: suggestions and an explanation, with positions in the body's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windlass.completion.autoclose import Closer
from windlass.completion.cursor import CursorPlace
from windlass.completion.fill import Filler, like, takes
from windlass.completion.fixes import Checker
from windlass.completion.rank import by_habit, ranked, right_names
from windlass.completion.schema import ApiDocument, Field
from windlass.completion.suggestions import Explanation, Fix, Suggestion
from windlass.completion.tree import QUOTES, TreeNode, written

MAX_CANDIDATES = 50

_IN_STRING = re.compile(r"[^\"'\s,:{}\[\]]*")
_IN_WORD = re.compile(r"[\w.@+-]*")
_SIGN = re.compile(r"\s*[:=]")


@dataclass(frozen=True)
class BodyCompletion:
    """An unfinished body: its text, the cursor, and its schema."""

    text: str
    cursor: int
    spot: CursorPlace
    root: Field
    filler: Filler
    python: bool = False
    others: tuple[Field, ...] = ()
    """Other operations that the body could be for, while no key distinguishes them."""

    @property
    def api(self) -> ApiDocument:
        return self.filler.api

    def candidates(self) -> list[Suggestion]:
        """Return what can follow at the cursor, the likeliest first."""
        match self.spot.role:
            case "key":
                found = [*self._keys(), *self._closers()]
            case "colon":
                found = [self._colon()]
            case "value":
                found = self._values()
            case "after":
                keys = self._keys() if self.spot.holder != "list" else []
                found = [*self._closers(), *keys] if not self._lacks() else [*keys, *self._closers()]
            case _:
                found = []
        return found[:MAX_CANDIDATES]

    def explains(self, candidates: Sequence[Suggestion]) -> Explanation | None:
        """Explain the field under the cursor, or else the first that is suggested."""
        spot = self.spot
        if spot.role == "value":
            return explain(self.api.inside(self.root, spot.path), self.filler)
        owner = self.api.inside(self.root, spot.path)
        if owner is None:
            return None
        word = self.text[spot.start : self._end()].strip("\"'") if spot.typed else ""
        last = spot.keys[-1:] if spot.role == "after" else ()
        for name in (word, *last, *(each.text for each in candidates[:1])):
            field = self.api.inside(owner, (name,)) if name else None
            if field is not None:
                return explain(field, self.filler)
        return None

    def _end(self) -> int:
        """Return the end of the token at the cursor."""
        if self.spot.quote:
            found = _IN_STRING.match(self.text, self.cursor)
            end = found.end() if found else self.cursor
            return end + (self.text[end : end + 1] == QUOTES.get(self.spot.quote, self.spot.quote[:1]))
        found = _IN_WORD.match(self.text, self.cursor)
        return found.end() if found and self.spot.typed else self.cursor

    def _free(self) -> list[Field]:
        """Return the unused fields: required ones first, then in their usual order."""
        owner = self.api.inside(self.root, self.spot.path)
        own = {field.name: field for field in self.api.fields(owner)} if owner is not None else {}
        others = [field for each in self.others if not self.spot.path for field in self.api.fields(each)]
        fields = {field.name: field for field in others if field.required} | own
        used = set(right_names(self.spot.keys, list(fields)))
        used |= {fields[name].older_name_of for name in used if name in fields} - {""}
        free = {
            name: field
            for name, field in fields.items()
            if name not in used and field.is_useful and field.older_name_of not in used
        }
        usual = by_habit(list(free))
        needed = [name for name in usual if free[name].required and not self._is_placed(name)]
        ordered = [*(name for name in needed if name in own), *needed, *usual]
        return [free[name] for name in dict.fromkeys(ordered)]

    def _is_placed(self, name: str) -> bool:
        """Whether a positional argument gives the field."""
        return self.spot.places > 0 and name != "model"

    def _lacks(self) -> bool:
        return any(field.required and not self._is_placed(field.name) for field in self._free())

    def _keys(self) -> list[Suggestion]:
        fields = {field.name: field for field in self._free()}
        if self.spot.places:
            fields = {name: field for name, field in fields.items() if name == "model" or not field.required}
        end = self._end()
        lead = "" if self.spot.comma else ", "
        lead = " " if self._touches_comma() else lead
        sign = "" if _SIGN.match(self.text, end) else "=" if self.spot.holder == "arguments" else ": "
        return [
            _candidate(fields[name], lead + self._named(name) + sign, (self.spot.start, end))
            for name in ranked(self.spot.typed, list(fields))
        ]

    def _touches_comma(self) -> bool:
        return self.spot.role == "key" and self.text[: self.spot.start].endswith(",")

    def _named(self, name: str) -> str:
        return name if self.spot.holder == "arguments" else written(name)

    def _closers(self) -> list[Suggestion]:
        """Suggest the closing bracket, unless a comma comes before it or it is there already."""
        spot = self.spot
        closer = {"list": "]", "arguments": ")"}.get(spot.holder, "}")
        stands = self.text[self.cursor :].lstrip().startswith(closer)
        if spot.typed or stands or (spot.role == "key" and (spot.keys or self._lacks())):
            return []
        at = (self.cursor, self.cursor)
        found = [Suggestion(closer, closer, at, about="ends the list" if closer == "]" else "ends it")]
        if spot.holder == "list":
            item = self.api.inside(self.root, (*spot.path, 0))
            if item is not None:
                item = like(item, spot.like)
                more = written(self.filler.sample(item), python=self.python)
                found.append(Suggestion(more, f", {more}", at, item.type, item.range, about=item.about))
        return found

    def _colon(self) -> Suggestion:
        sign = "=" if self.spot.holder == "arguments" else ": "
        return Suggestion(
            ":", sign, (self.cursor, self.cursor), about=f"then the value of '{self.spot.typed}'"
        )

    def _values(self) -> list[Suggestion]:
        field = self.api.inside(self.root, self.spot.path)
        if field is None:
            return self._quoted(None)
        field = like(field, self.spot.like) if self.spot.like is not None else field
        shown = {_shown(value): value for value in self._possible(field)}
        place = (self.spot.start, self._end())
        names = ranked(self.spot.typed, list(shown))
        found = [
            _candidate(field, written(shown[name], python=self.python), place, text=name)
            for name in names
            if self._may_stand(shown[name])
        ]
        return found or self._quoted(field)

    def _may_stand(self, value: Any) -> bool:
        return not self.spot.quote or isinstance(value, str)

    def _possible(self, field: Field) -> list[Any]:
        """Return values that a field accepts: all if they can be listed, else the usual ones."""
        counted = [*(self.filler.models if field.names_model else ()), *field.values]
        if counted or self.spot.quote:
            first = self.filler.sample(field)
            return [first, *counted] if first in counted else counted
        if field.has("integer", "number") and not field.has("string"):
            arm = field.arm("integer") or field.arm("number") or {}
            ends = [arm[end] for end in ("minimum", "maximum") if end in arm]
            partial = [_number(self.spot.typed + "5")] if self.spot.typed else []
            return [each for each in (self.filler.sample(field), *ends, *partial) if takes(field, each)]
        sample = self.filler.sample(field)
        return [sample or self._beginning(field)]

    def _beginning(self, field: Field) -> Any:
        return [] if field.has("array") else {} if field.has("object") else ""

    def _quoted(self, field: Field | None) -> list[Suggestion]:
        """Suggest to close a string, or to remove the quotes around a number."""
        if not self.spot.quote or (field is not None and field.values):
            return []
        value: Any = self.spot.typed
        if field is not None and not value and field.has("string"):
            value = self.filler.sample(like(field, "a text"))
        elif field is not None and not field.has("string"):
            value = Checker(self.filler, self.python, len(self.text)).better(value, field)
            if value is None:
                return []
        insert = written(value, python=self.python)
        place = (self.spot.start, self._end())
        return [_candidate(field, insert, place, text=insert) if field else Suggestion(insert, insert, place)]


def fixes_of(
    text: str,
    tree: TreeNode | None,
    root: Field,
    filler: Filler,
    *,
    python: bool,
    known: frozenset[str] = frozenset(),
) -> list[Fix]:
    """Return the mistakes of a body, and what it lacks to be complete."""
    checker = Checker(filler, python, len(text), known)
    found = checker.check(tree, root)
    end = Closer(checker, text).close(tree, root)
    return [*found, end] if end is not None else found


def explain(field: Field | None, filler: Filler) -> Explanation | None:
    if field is None:
        return None
    values = tuple(_shown(each) for each in (*(filler.models if field.names_model else ()), *field.values))
    return Explanation(
        field.name,
        field.type,
        field.range,
        field.default,
        field.about,
        field.required,
        values[:MAX_CANDIDATES],
    )


def _candidate(field: Field, insert: str, replace: tuple[int, int], text: str = "") -> Suggestion:
    return Suggestion(
        text or field.name, insert, replace, field.type, field.range, field.default, field.about
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else written(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
