"""Builds a body that the server accepts from what was typed: valid values are kept, the rest is supplied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from windlass.completion.rank import by_habit
from windlass.completion.schema import ApiDocument, Field, Schema

SAMPLES = {"prompt": "Once upon a time", "content": "Hello!", "input": "Hello!", "text": "Hello!"}
PREFERRED = ("user",)
"""Among equals, the value that a first call most likely has."""
MAX_DEPTH = 8
A_FEW = 32
"""A number where the document names no default."""


class Filler:
    """Supplies values for the fields of one document."""

    def __init__(self, api: ApiDocument, models: Sequence[str]) -> None:
        self.api = api
        self.models = models

    def sample(self, field: Field, depth: int = 0) -> Any:
        """Return a value that a field takes."""
        if field.names_model:
            return self._model(field)
        if field.values:
            return next((each for each in PREFERRED if each in field.values), field.values[0])
        if not field.arms or depth > MAX_DEPTH:
            return None
        arm = field.arms[0]
        match arm.get("type"):
            case "string":
                return SAMPLES.get(field.name, "Hello!")[: arm.get("maxLength")]
            case "integer" | "number":
                return self._amount(field, arm)
            case "array":
                item = self.api.inside(field, (0,))
                wanted = field.required or arm.get("minItems", 0) > 0
                return [self.sample(item, depth + 1)] if item is not None and wanted else []
            case "object":
                return {each.name: self.sample(each, depth + 1) for each in self._needed(field)}
        return None

    def filled(self, value: Any, field: Field, depth: int = 0) -> Any:
        """Return the value with what is missing supplied, and without what the field does not take."""
        if isinstance(value, dict) and field.has("object") and depth <= MAX_DEPTH:
            return self._object(value, field, depth)
        if isinstance(value, list) and field.has("array") and depth <= MAX_DEPTH:
            return self._list(value, field, depth)
        return value if takes(field, value) else self.sample(field)

    def missing(self, field: Field, given: Sequence[str]) -> list[Field]:
        """Return the fields that an object needs and does not have, in the usual order."""
        needed = {each.name: each for each in self._needed(field)}
        return [needed[name] for name in by_habit(list(needed)) if name not in given]

    def _list(self, value: list[Any], field: Field, depth: int) -> list[Any]:
        item = self.api.inside(field, (0,))
        if item is None:
            return value
        item = like(item, value[0]) if value else item
        kept = [self.filled(each, item, depth + 1) for each in value]
        kept = [each for each in kept if takes(item, each)]
        return kept if takes(field, kept) else [self.sample(item)]

    def _object(self, value: dict[str, Any], field: Field, depth: int) -> dict[str, Any]:
        known = {each.name: each for each in self.api.fields(field)}
        if not known or self.api.is_open(field):
            return {name: inner for name, inner in value.items() if self._may_have(field, name, inner)}
        kept = {}
        for name, inner in value.items():
            found = known.get(name)
            if found is None or not found.is_useful:
                continue
            better = self.filled(inner, found, depth + 1)
            if found.required or better == inner or isinstance(inner, dict | list):
                kept[name] = better
        added = {each.name: self.sample(each) for each in self.missing(field, list(kept))}
        return {name: (kept | added)[name] for name in [*added, *kept]} if "model" in added else kept | added

    def _may_have(self, field: Field, name: str, value: Any) -> bool:
        found = self.api.inside(field, (name,))
        return found is None or takes(found, value)

    def _needed(self, field: Field) -> list[Field]:
        return [each for each in self.api.fields(field) if each.required]

    def _model(self, field: Field) -> str:
        pattern = next((arm["pattern"] for arm in field.arms if "pattern" in arm), "")
        return next(
            (name for name in self.models if re.search(pattern, name)), "NAME@1" if pattern else "MODEL"
        )

    def _amount(self, field: Field, arm: Schema) -> int | float:
        is_number = field.default.replace(".", "", 1).lstrip("-").isdigit()
        amount = float(field.default) if is_number else min(A_FEW, arm.get("maximum", A_FEW))
        amount = clamped(amount, arm)
        return int(amount) if amount == int(amount) else amount


def like(item: Field, value: Any) -> Field:
    """Return the field of a list's items, without the alternatives that its first item is not."""
    arms = tuple(arm for arm in item.arms if _arm_takes(arm, value))
    return replace(item, arms=arms) if arms else item


def takes(field: Field, value: Any) -> bool:
    """Return whether a field accepts a value, by its own keywords."""
    if value is None:
        return field.nullable
    return any(_arm_takes(arm, value) for arm in field.arms)


def clamped(value: float, arm: Schema) -> float:
    """Return the nearest number that an alternative allows."""
    step = 1 if arm.get("type") == "integer" else 0.01
    low = arm.get("minimum", arm["exclusiveMinimum"] + step if "exclusiveMinimum" in arm else value)
    high = arm.get("maximum", arm["exclusiveMaximum"] - step if "exclusiveMaximum" in arm else value)
    return type(value)(max(low, min(high, value)))


def _arm_takes(arm: Schema, value: Any) -> bool:
    if "const" in arm or "enum" in arm:
        return any(
            value == each and type(value) is type(each) for each in arm.get("enum", [arm.get("const")])
        )
    match arm.get("type"):
        case "string":
            return isinstance(value, str) and _size_fits(arm, "Length", len(value)) and _matches(arm, value)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number" as kind:
            is_one = isinstance(value, int if kind == "integer" else int | float) and not isinstance(
                value, bool
            )
            return is_one and clamped(value, arm) == value
        case "array":
            return isinstance(value, list) and _size_fits(arm, "Items", len(value))
        case "object":
            return isinstance(value, dict)
    return True


def _size_fits(arm: Schema, suffix: str, size: int) -> bool:
    return bool(arm.get(f"min{suffix}", 0) <= size <= arm.get(f"max{suffix}", size))


def _matches(arm: Schema, value: str) -> bool:
    return "pattern" not in arm or re.search(arm["pattern"], value) is not None
