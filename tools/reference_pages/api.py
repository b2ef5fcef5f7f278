"""docs/reference/api.md and control-api.md: every route and shape, from the OpenAPI documents."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_pages.markdown import anchor, code, head, table, whole
from reference_pages.schema_words import words
from windlass.control.api import app as control_api
from windlass.http.errors import CODES
from windlass.serve.gateway.app import ADMIN, Gateway, router

_CODE = re.compile(r"`(\w+)`: ")


def gateway_page() -> str:
    """Return the page of the API that serves models."""
    app = Gateway(title="Windlass", docs_url=None, redoc_url=None)
    for each in (router, *ADMIN):
        app.include_router(each)
    start = head(
        "The API of a service",
        "Every route of `windlass serve`, from its own `/openapi.json`; the page of a running service shows"
        " the same, with examples that can be tried. [The service](../service.md#api) tells what it all"
        " means, [Errors](errors.md) what each code does. In a request, null is the same as leaving a"
        " field out.",
    )
    document = app.openapi()
    usual = set.intersection(*({*_codes(operation)} for _, operation in _operations(document)))
    start += [f"Any route can also answer: {', '.join(_link(name) for name in CODES if name in usual)}.", ""]
    return _page(start, document, usual)


def control_page() -> str:
    """Return the page of the API that controls runs."""
    with tempfile.TemporaryDirectory() as home:
        document = control_api.build_app(Path(home)).openapi()
    start = head(
        "The control API",
        "Every route of `windlass control`, from its own `/openapi.json`. [The format](../formats/control.md)"
        " is normative; failures have its envelope.",
    )
    return _page(start, document, set())


def _page(lines: list[str], document: dict[str, Any], usual: set[str]) -> str:
    routes = list(_operations(document))
    entries = (
        (f"[{code(name)}](#{anchor(name)})", _who(operation), _first(operation)) for name, operation in routes
    )
    lines += ["## Routes", "", *table(("route", "scope", "what it does"), entries)]
    for name, operation in routes:
        lines += _route(name, operation, usual)
    lines += ["## Shapes", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_shape(schema)]
    return whole(lines)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def _who(operation: dict[str, Any]) -> str:
    if operation.get("x-scope"):
        return code(operation["x-scope"])
    return "none" if operation.get("security") == [] else "a key"


def _first(operation: dict[str, Any]) -> str:
    return str(operation.get("description") or operation.get("summary") or "").partition("\n\n")[0]


def _route(name: str, operation: dict[str, Any], usual: set[str]) -> list[str]:
    lines = [f"### {name}", "", " ".join(operation.get("description", "").split()), ""]
    lines += [f"Needs: {_needs(operation)}. {_bodies(operation)}".rstrip(), ""]
    rows = (
        (code(each["name"]), each["in"], words(each.get("schema", {})), each.get("description", ""))
        for each in operation.get("parameters", ())
    )
    lines += table(("parameter", "in", "value", "meaning"), rows)
    return lines + table(("status", "codes"), _refusals(operation, usual))


def _needs(operation: dict[str, Any]) -> str:
    who = _who(operation)
    return {"none": "no key", "a key": "a key"}.get(who, f"a key with the scope {who}")


def _bodies(operation: dict[str, Any]) -> str:
    """Name what is sent and what comes back."""
    sent = _contents(operation.get("requestBody", {}))
    back = _contents(operation["responses"].get("200", {}))
    return (f"Takes {sent}. " if sent else "") + (f"Gives {back}." if back else "")


def _contents(body: dict[str, Any]) -> str:
    shapes = []
    for media, entry in body.get("content", {}).items():
        shape = words(entry.get("schema", {}))
        shapes.append(f"{shape} as {code(media)}" if "](#" in shape else code(media))
    return " or ".join(shapes)


def _refusals(operation: dict[str, Any], usual: set[str]) -> Iterator[tuple[str, str]]:
    by_status: dict[int, list[str]] = {}
    for name in _codes(operation):
        if name not in usual:
            by_status.setdefault(CODES[name].status, []).append(_link(name))
    for status, links in sorted(by_status.items()):
        yield str(status), ", ".join(links)


def _codes(operation: dict[str, Any]) -> Iterator[str]:
    """Yield the codes of the gateway that an operation can answer with."""
    for answer in operation["responses"].values():
        yield from (name for name in _CODE.findall(answer.get("description", "")) if name in CODES)


def _link(name: str) -> str:
    return f"[{code(name)}](errors.md#{name})"


def _shape(schema: dict[str, Any]) -> list[str]:
    lines = [" ".join(schema["description"].split()), ""] if schema.get("description") else []
    if "properties" not in schema:
        return [*lines, f"{words(schema)[:1].upper()}{words(schema)[1:]}.", ""]
    needed = schema.get("required", ())
    rows = (
        (
            code(name) + (" (needed)" if name in needed else ""),
            words(field, optional=name not in needed),
            _default(field),
            _about(field),
        )
        for name, field in schema["properties"].items()
    )
    return lines + table(("field", "value", "default", "meaning"), rows)


def _default(field: dict[str, Any]) -> str:
    """Return what a field is where it is left out; `x-default` says it of those that are null then."""
    value = field.get("x-default", field.get("default"))
    return "" if value in (None, [], {}) else code(json.dumps(value, ensure_ascii=False))


def _about(field: dict[str, Any]) -> str:
    found = [field, *field.get("anyOf", ())]
    return next((str(each["description"]) for each in found if "description" in each), "")
