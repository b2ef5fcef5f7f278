"""The entry point: from a text with a cursor, and the server's OpenAPI document, to Suggestions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.completion import kinds
from windlass.completion.bodies import in_body, whole_call
from windlass.completion.fill import Filler
from windlass.completion.from_curl import complete_curl
from windlass.completion.from_python import complete_python
from windlass.completion.json_text import read_value
from windlass.completion.schema import ApiDocument
from windlass.completion.shell_text import whole_text
from windlass.completion.suggestions import SERVER, Suggestions, put_all
from windlass.completion.tree import plain


def complete(
    text: str,
    cursor: int | None = None,
    *,
    document: Mapping[str, Any],
    models: Sequence[str] = (),
    kind: str = "auto",
    path: str = "",
    server: str = SERVER,
) -> Suggestions:
    """Suggest what can follow in a JSON body, a curl command or Python; `path` is the route of a body."""
    place = len(text) if cursor is None else max(0, min(cursor, len(text)))
    filler = Filler(ApiDocument(document), list(models))
    match kinds.kind_of(text) if kind == "auto" else kind:
        case kinds.CURL:
            return complete_curl(text, place, filler, server)
        case kinds.PYTHON:
            return complete_python(text, place, filler, server)
    return complete_json(text, place, filler, server, path)


def complete_json(text: str, cursor: int, filler: Filler, server: str, path: str = "") -> Suggestions:
    """Suggest what can follow in a body."""
    part = in_body(whole_text(text), cursor, filler, filler.api.find(path, "POST") if path else None)
    fixed = put_all(text, part.fixes)
    operation = part.operation
    return Suggestions(
        kinds.JSON,
        operation.method if operation is not None else "",
        operation.path if operation is not None else "",
        part.candidates,
        part.fixes,
        fixed,
        part.explains,
        whole_call(operation, plain(read_value(fixed)[0]), filler, server, path=path),
    )


def names_of(ids: Sequence[str]) -> list[str]:
    """Return the model names that a request can use, given the ids that the server lists."""
    bare = [each.partition("@")[0].partition(":")[0] for each in ids]
    adapters = [
        f"{name}:{each.partition(':')[2]}" for name, each in zip(bare, ids, strict=True) if ":" in each
    ]
    return list(dict.fromkeys([*bare, *ids, *adapters]))
