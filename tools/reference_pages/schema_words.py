"""JSON Schema in words: what may stand in a field."""

from __future__ import annotations

import json
from typing import Any

from reference_pages.markdown import anchor, code

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "object",
}
BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
)
COUNTS = (
    ("minLength", "maxLength", "characters"),
    ("minItems", "maxItems", "entries"),
    ("minProperties", "maxProperties", "entries"),
)


def words(schema: dict[str, Any], *, optional: bool = False) -> str:
    """Describe what a schema allows, with links to shapes; for optional fields, null is omitted."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        parts = [each for each in several if not optional or each.get("type") != "null"]
        return "; or ".join(dict.fromkeys(map(words, parts)))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    return ", ".join([_kind(schema), *_bounds(schema), *_counts(schema)])


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        return f"list of ({words(schema.get('items', {}))})"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of ({words(schema['additionalProperties'])})"
    return TYPES.get(str(kind), "anything")


def _bounds(schema: dict[str, Any]) -> list[str]:
    parts = [text.format(_number(schema[key])) for key, text in BOUNDS if key in schema]
    return parts + ([f"matches {code(schema['pattern'])}"] if "pattern" in schema else [])


def _counts(schema: dict[str, Any]) -> list[str]:
    parts = []
    for lower, upper, what in COUNTS:
        low, high = schema.get(lower), schema.get(upper)
        if low and high is not None:
            parts.append(f"{low} to {high} {what}")
        elif high is not None:
            parts.append(f"at most {high} {what}")
        elif low:
            parts.append(f"at least {low} {what}")
    return parts


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
