"""docs/reference/job-file.md: every table and key of the job file, from the models that read it."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from reference_pages.markdown import anchor, block, code, head, table, whole
from windlass.spec.job import Job
from windlass.spec.units import parse_bytes, parse_count, parse_seconds

KINDS: dict[Any, str] = {
    parse_bytes: "size, e.g. `'4GiB'`",
    parse_count: "count, e.g. `'20M'`",
    parse_seconds: "duration, e.g. `'90s'`",
}
UNITS = {
    KINDS[parse_bytes]: (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)),
    KINDS[parse_seconds]: (("d", 86400), ("h", 3600), ("m", 60), ("s", 1), ("ms", 1e-3)),
}
"""To write defaults with, largest first."""
PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    dict[str, str]: "names with texts",
    Path: "path",
}
SIGNS: dict[Any, tuple[str, str]] = {
    Ge: ("at least", "ge"),
    Gt: ("more than", "gt"),
    Le: ("at most", "le"),
    Lt: ("less than", "lt"),
}
EXAMPLE = """\
name = "poems"

[corpus]
sources = ["poems/*.txt"]

[train]
time = "3m"
"""


def page() -> str:
    """Return the page."""
    lines = head(
        "The job file",
        "One TOML file says what to train, on what text, for how long, and how to serve it. Every line can be"
        " left out. Where the default is empty, the planner decides or the feature is off, as the meaning"
        " says. A key that is not known is refused, with the nearest right one.",
    )
    lines += block(EXAMPLE)
    lines += [
        "`windlass init job.toml` writes one with all keys and comments, `windlass init --schema` prints the"
        " JSON Schema, and `--set TABLE.KEY=VALUE` of most verbs changes a key for one run. Sizes are `4GiB`"
        " or `500MB`, counts `20M` or `1.5B`, durations `90s`, `10m`, `3h` or `2d`.",
        "",
    ]
    lines += [f"- [{name}](#{anchor(name)})" for name, _, _ in tables()] + [""]
    for name, about, model in tables():
        lines += [f"## {name}", "", about, ""]
        lines += table(("key", "value", "default", "meaning"), _rows(model))
    return whole(lines)


def tables() -> list[tuple[str, str, type[BaseModel]]]:
    """Return every table with its name and what it is for, in the order of the file."""
    return [("At the top", "Keys before the first table.", Job), *_below(Job, ())]


def _below(model: type[BaseModel], path: tuple[str, ...]) -> list[tuple[str, str, type[BaseModel]]]:
    found = []
    for key, field in model.model_fields.items():
        inner = _table_of(field.annotation)
        if inner is not None:
            about = _capital(field.description or "") + "."
            found += [(f"[{'.'.join((*path, key))}]", about, inner), *_below(inner, (*path, key))]
        elif (each := _listed(field.annotation)) is not None:
            about = f"{_capital(field.description or '')}; one table for each."
            found.append((f"[[{'.'.join((*path, key))}]]", about, each))
    return found


def _rows(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    return [
        (code(key), _value(field.annotation, field.metadata), _default(field), field.description or "")
        for key, field in model.model_fields.items()
        if _table_of(field.annotation) is None and _listed(field.annotation) is None
    ]


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a key that is a table of its own, given or left out."""
    found = [
        a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)
    ]
    return found[0] if found and get_origin(annotation) is not tuple else None


def _listed(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a key that is a list of tables."""
    if get_origin(annotation) is not tuple:
        return None
    inside = get_args(annotation)[0]
    return inside if isinstance(inside, type) and issubclass(inside, BaseModel) else None


def _value(annotation: Any, metadata: list[Any]) -> str:
    """Say in words what may stand behind a key."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(inside[0], [*inside[1:], *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(_value(each, metadata) for each in inside if each is not type(None))
    if origin is Literal:
        return ", ".join(code(str(each)) for each in inside)
    if origin is tuple:
        return f"list of: {_value(inside[0], [])}" + (
            ", not empty" if _bound(metadata, MinLen, "min_length") else ""
        )
    kind = next(
        (KINDS[m.func] for m in _flat(metadata) if isinstance(m, BeforeValidator) and m.func in KINDS), None
    )
    return kind or f"{PLAIN[annotation]}{_range(metadata)}"


def _range(metadata: list[Any]) -> str:
    bounds = [
        f"{sign} {bound}"
        for kind, (sign, name) in SIGNS.items()
        if (bound := _bound(metadata, kind, name)) is not None
    ]
    return f", {' and '.join(bounds)}" if bounds else ""


def _bound(metadata: list[Any], kind: type[Any], name: str) -> Any:
    return next((getattr(each, name) for each in _flat(metadata) if isinstance(each, kind)), None)


def _flat(metadata: list[Any]) -> list[Any]:
    """Open the fields inside Annotated, which hold metadata of their own."""
    found: list[Any] = []
    for each in metadata:
        found += each.metadata if isinstance(each, FieldInfo) else [each]
    return found


def _default(field: FieldInfo) -> str:
    value, words = field.default, _value(field.annotation, field.metadata)
    if field.is_required():
        return "required"
    if value is None:
        return ""
    units = UNITS.get(words)
    return code(json.dumps(_exact(value, units) if units else value, ensure_ascii=False))


def _exact(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Write a quantity in the largest unit of which it is a whole number."""
    unit, size = next((unit, size) for unit, size in units if value / size == round(value / size))
    return f"{round(value / size)}{unit}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
