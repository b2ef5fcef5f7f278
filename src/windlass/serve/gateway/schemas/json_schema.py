"""What is allowed at a place of a request body, in the keywords of JSON Schema.

The source is the schema in the OpenAPI document, so that errors and the document agree.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel

KEYWORDS = (
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const", "pattern",
    "minLength", "maxLength", "minItems", "maxItems",
)  # fmt: skip

Fragment = dict[str, Any]


def allowed_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> Fragment | None:
    """Return what is allowed at a place, or None where the schema does not restrict it."""
    whole = schema_of(model)
    places = [whole]
    for part in loc:
        inner = [schema for place in places for schema in _step(place, part, whole)]
        places = inner or places
    found = [_keywords(arm) for place in places for arm in _arms(place, whole)]
    kinds = [kind for kind in found if kind and kind != {"type": "null"}]
    if not kinds or places == [whole]:
        return None
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


@lru_cache(maxsize=32)
def schema_of(model: type[BaseModel]) -> Fragment:
    """Return the JSON Schema of a request body."""
    return model.model_json_schema(mode="validation")


def _step(place: Fragment, part: int | str, whole: Fragment) -> list[Fragment]:
    """Go one step down in every alternative that has this property or item."""
    found = []
    for arm in _arms(place, whole):
        if isinstance(part, int) and "items" in arm:
            found.append(arm["items"])
        elif part in arm.get("properties", {}):
            found.append(arm["properties"][part])
    return found


def _arms(place: Fragment, whole: Fragment) -> list[Fragment]:
    """Return the alternatives of a schema, with references followed."""
    if "$ref" in place:
        name = place["$ref"].rpartition("/")[2]
        return _arms(whole["$defs"][name], whole)
    if "anyOf" in place:
        return [found for arm in place["anyOf"] for found in _arms(arm, whole)]
    return [place]


def _keywords(arm: Fragment) -> Fragment:
    return {key: arm[key] for key in KEYWORDS if key in arm}
