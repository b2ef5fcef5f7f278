"""What an OpenAPI document says: the operations, their fields, and what each field takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

MAX_ARMS = 16
"""Maximum alternatives of one field; a document that refers to itself would have endless ones."""

_DEFAULT = re.compile(r"\b[Dd]efault(?:s to|:)? ['`\"]?(-?[\w.]*\w)")
_OLDER = re.compile(r"older name of (\w+)")
_WORDS = {"boolean": "true or false", "array": "list"}


@dataclass(frozen=True)
class Field:
    """A field of a body, or any value inside one: its alternatives, references followed, without null."""

    name: str
    schema: Schema
    required: bool
    arms: tuple[Schema, ...]
    nullable: bool = False

    @property
    def about(self) -> str:
        schemas = (self.schema, *self.arms)
        return next((str(each["description"]) for each in schemas if each.get("description")), "")

    @cached_property
    def type(self) -> str:
        return " or ".join(dict.fromkeys(_type(arm) for arm in self.arms)) or "null"

    @cached_property
    def range(self) -> str:
        return next((found for arm in self.arms if (found := _range(arm))), "")

    @cached_property
    def default(self) -> str:
        """The default in the schema, or the one in the description."""
        given = self.schema.get("x-default", self.schema.get("default"))
        if given is not None:
            return given if isinstance(given, str) else json.dumps(given)
        found = _DEFAULT.search(self.about)
        return found[1] if found else ""

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """All values that it accepts, if they can be listed."""
        found: list[Any] = []
        for arm in self.arms:
            found += arm["enum"] if "enum" in arm else [arm["const"]] if "const" in arm else []
            found += [True, False] if arm.get("type") == "boolean" and "const" not in arm else []
        return tuple(found)

    @property
    def is_useful(self) -> bool:
        """Whether it has an effect: some fields accept only null or the default."""
        if self.required:
            return True
        only = [arm for arm in self.arms if "const" not in arm and arm.get("maxItems") != 0]
        return bool(only)

    @property
    def names_model(self) -> bool:
        """Whether its value is the name of a model."""
        return self.has("string") and (self.name == "model" or self.about.startswith("NAME"))

    @property
    def older_name_of(self) -> str:
        found = _OLDER.search(self.about)
        return found[1] if found else ""

    def has(self, *types: str) -> bool:
        return any(arm.get("type") in types for arm in self.arms)

    def arm(self, kind: str) -> Schema | None:
        """Return the first alternative of a type."""
        return next((arm for arm in self.arms if arm.get("type") == kind), None)


@dataclass(frozen=True)
class Operation:
    """One operation of the server: a method of a path."""

    method: str
    path: str
    about: str
    body: Field | None
    headers: tuple[Field, ...]
    needs_key: bool


class ApiDocument:
    """The operations of a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
        self.operations = [
            self._operation(method.upper(), path, details)
            for path, methods in document.get("paths", {}).items()
            for method, details in methods.items()
            if isinstance(details, Mapping)
        ]

    def find(self, path: str, method: str = "") -> Operation | None:
        """Return the operation of a path, with names in the place of its placeholders."""
        fitting = [each for each in self.operations if each.path == path]
        fitting = fitting or [each for each in self.operations if _fits(each.path, path)]
        exact = [each for each in fitting if each.method == method.upper()]
        with_body = [each for each in fitting if each.body is not None]
        return next(iter([*exact, *with_body, *fitting]), None)

    def fitting(self, keys: Iterable[str], typed: str = "") -> list[Operation]:
        """Return the operations that a body with such keys may be for, the likeliest first."""
        given = list(keys)
        bodies = [each for each in self.operations if each.body is not None]
        return sorted(bodies, key=lambda each: -self._fit(each, given, typed))

    def _fit(self, operation: Operation, keys: Sequence[str], typed: str) -> float:
        assert operation.body is not None
        fields = {field.name: field for field in self.fields(operation.body)}
        score = sum(1.0 if key in fields else -1.0 for key in keys)
        if typed:
            begins = [field for name, field in fields.items() if name.startswith(typed)]
            score += 0.5 * bool(begins) + 0.4 * any(field.required for field in begins)
        return score if operation.path.startswith("/v1/") else score - 0.75

    def field(self, name: str, schema: Schema, *, required: bool = False) -> Field:
        arms = list(self._arms(schema))[:MAX_ARMS]
        real = tuple(arm for arm in arms if arm.get("type") != "null")
        return Field(name, schema, required, real, nullable=len(real) < len(arms))

    def fields(self, owner: Field) -> list[Field]:
        """Return the fields of an object."""
        return [
            self.field(name, schema, required=name in arm.get("required", ()))
            for arm in owner.arms
            for name, schema in arm.get("properties", {}).items()
        ]

    def inside(self, owner: Field, path: Path) -> Field | None:
        """Follow keys and places down from a field; None where the document says nothing."""
        found: Field | None = owner
        for part in path:
            if found is None:
                return None
            found = self._step(found, part)
        return found

    def is_open(self, owner: Field) -> bool:
        """Whether an object takes keys that the document does not name."""
        return any(
            arm.get("type") == "object" and (arm.get("additionalProperties") or "patternProperties" in arm)
            for arm in owner.arms
        )

    def _step(self, owner: Field, part: str | int) -> Field | None:
        if isinstance(part, str):
            named = (field for field in self.fields(owner) if field.name == part)
            return next(named, None) or self._by_pattern(owner, part)
        items = [arm["items"] for arm in owner.arms if "items" in arm]
        return self.field(owner.name, {"anyOf": items} if len(items) != 1 else items[0]) if items else None

    def _by_pattern(self, owner: Field, name: str) -> Field | None:
        """Return the field of a name that only a pattern allows."""
        for arm in owner.arms:
            for pattern, schema in arm.get("patternProperties", {}).items():
                if re.search(pattern, name):
                    return self.field(name, schema)
        return None

    def _arms(self, schema: Schema, depth: int = 0) -> Iterable[Schema]:
        if depth > MAX_ARMS:
            return
        if "$ref" in schema:
            yield from self._arms(self._schemas.get(str(schema["$ref"]).rpartition("/")[2], {}), depth + 1)
        elif "anyOf" in schema or "oneOf" in schema:
            for arm in schema.get("anyOf", schema.get("oneOf", ())):
                yield from self._arms(arm, depth + 1)
        else:
            yield schema

    def _operation(self, method: str, path: str, details: Mapping[str, Any]) -> Operation:
        content = details.get("requestBody", {}).get("content", {}).get("application/json")
        headers = tuple(
            self.field(
                each["name"],
                {**each.get("schema", {}), "description": each.get("description", "")},
                required=bool(each.get("required")),
            )
            for each in details.get("parameters", ())
            if each.get("in") == "header"
        )
        body = self.field("", content["schema"], required=True) if content else None
        needs_key = bool(details.get("security"))
        return Operation(method, path, details.get("description", ""), body, headers, needs_key)


def _fits(template: str, path: str) -> bool:
    ours, theirs = template.split("/"), path.partition("?")[0].split("/")
    return len(ours) == len(theirs) and all(
        a == b or (a.startswith("{") and b) for a, b in zip(ours, theirs, strict=True)
    )


def _type(arm: Schema) -> str:
    kind = arm.get("type", "")
    if "enum" in arm or "const" in arm:
        return "one of " + ", ".join(json.dumps(each) for each in arm.get("enum", [arm.get("const")]))
    if kind == "array" and isinstance(arm.get("items"), Mapping) and arm["items"].get("type"):
        return f"list of {_type(arm['items'])}"
    return _WORDS.get(kind, kind or "anything")


def _range(arm: Schema) -> str:
    unit, low, high = "", arm.get("minimum"), arm.get("maximum")
    for suffix, name in (("Length", " characters"), ("Items", " entries")):
        if f"min{suffix}" in arm or f"max{suffix}" in arm:
            unit, low, high = name, arm.get(f"min{suffix}"), arm.get(f"max{suffix}")
    above, below = arm.get("exclusiveMinimum"), arm.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{low} to {high}{unit}"
    parts = [
        f"{word} {bound}"
        for word, bound in (("at least", low), ("above", above), ("at most", high), ("below", below))
        if bound is not None
    ]
    return ", ".join(parts) + unit if parts else ""
