"""The OpenAPI document of an API that reads bodies and writes errors itself, without FastAPI.

Routes declare their requests and replies with `takes` and `gives`; codes.toml has the meaning of each error.
The document lists every status that a route can answer with, and fuzz tests check the routes against it.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.deadlines import MAX_MS
from windlass.http.error_reply import ErrorReply
from windlass.http.errors import CODES
from windlass.http.static_files import Page, send

REFS = "#/components/schemas/{model}"
BEARER = "bearer"

GUARD = (
    "malformed_request", "url_too_long", "headers_too_large", "head_timeout", "foreign_host",
    "foreign_origin", "too_many_connections", "not_found", "internal", "shutting_down",
)  # fmt: skip
"""Error codes that are possible on any path."""
KEYS = ("unauthorized", "forbidden", "state_unavailable")
BODIES = (
    "invalid_json", "invalid_value", "missing_parameter", "unknown_parameter", "unsupported_parameter",
    "body_timeout", "body_too_large", "unsupported_media_type",
)  # fmt: skip
QUERIES = ("invalid_value", "unknown_parameter")
MODELS = ("model_not_found", "engine_unavailable")
TEXTS = ("context_length_exceeded", "no_tokenizer", "invalid_messages")
WORK = (
    "invalid_header", "invalid_grammar", "wrong_model_kind", "idempotency_in_progress",
    "idempotency_mismatch", "rate_limited", "too_many_concurrent", "quota_exhausted", "queue_full",
    "overloaded", "deadline_unreachable", "deadline_exceeded", "engine_failed", "poisonous",
)  # fmt: skip

TERMS = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        "description": "The same key and body within a day give the stored answer. Not for streams.",
    },
    {
        "name": "X-Deadline-Ms",
        "in": "header",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_MS},
        "description": "Cancel the request if the answer is not finished after so many milliseconds.",
    },
)
"""Headers that control how a request is answered."""
REQUEST_ID = {"description": "Finds the request in the logs.", "schema": {"type": "string"}}
RETRY_AFTER = {
    "description": "Seconds to wait before the next attempt.",
    "schema": {"type": "integer", "minimum": 1},
}


def takes(model: type[BaseModel] | None, parameters: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Describe what a route reads: a JSON body, and headers that it interprets."""
    request: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
    if model is not None:
        schema = {"$ref": REFS.format(model=model.__name__)}
        request["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return request


def gives(
    model: type[BaseModel] | None, *codes: str, streams: bool = False, is_open: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Describe what a route answers: its reply, and every error status with its codes."""
    well: dict[str, Any] = {"headers": {"X-Request-Id": REQUEST_ID}}
    if model is not None:
        well["model"] = model
    if streams:
        well["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    refused = dict.fromkeys([*GUARD, *(() if is_open else KEYS), *codes])
    answers: dict[int | str, dict[str, Any]] = {200: well}
    return answers | {status: _refusal(names) for status, names in _by_status(refused).items()}


def shows(*media_types: str, model: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """Describe a route that serves a page, which browsers may cache.

    With `model`, clients that accept JSON get that instead.
    """
    content = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    same: dict[int | str, dict[str, Any]] = {
        200: {"content": content, "description": "For people."} | ({"model": model} if model else {}),
        304: {"description": "The browser has it: If-None-Match names its ETag."},
    }
    # An ambiguous path is not open: without a key the reply is 401.
    return gives(None, "unauthorized", is_open=True) | same


def _by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for code in codes:
        found[CODES[code].status].append(code)
    return dict(sorted(found.items()))


def _refusal(codes: list[str]) -> dict[str, Any]:
    headers: dict[str, Any] = {"X-Request-Id": REQUEST_ID}
    if any(CODES[code].status in (409, 429, 503) for code in codes):
        headers["Retry-After"] = RETRY_AFTER
    description = " ".join(f"`{code}`: {CODES[code].meaning}" for code in codes)
    return {"content": refers(ErrorReply), "description": description, "headers": headers}


def refers(*models: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that is one of these models; `add_schemas` adds their schemas.

    FastAPI would inspect the model again for every status of every route, half of the document's cost.
    """
    schemas = [{"$ref": REFS.format(model=model.__name__)} for model in models]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


class Documented(FastAPI):
    """FastAPI with an exact OpenAPI document."""

    page: Page | None = None

    def setup(self) -> None:
        """Serve the document from memory, with gzip if accepted: a tenth of the bytes."""
        self.add_route("/openapi.json", self._show, include_in_schema=False)

    async def _show(self, request: Request) -> Response:
        if self.page is None:
            # The first call takes a quarter of a second, which must not block streams.
            self.page = await asyncio.to_thread(self._written)
        return send(request, self.page)

    def _written(self) -> Page:
        text = json.dumps(self.openapi(), ensure_ascii=False, separators=(",", ":"))
        return Page(text.encode(), "application/json")

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = self.describe()
        return self.openapi_schema

    def describe(self) -> dict[str, Any]:
        """Build the document, without FastAPI's 422: invalid bodies get 400 here."""
        document = get_openapi(title=self.title, version=self.version, routes=self.routes)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                if operation["responses"].get("422", {}).get("description") == "Validation Error":
                    del operation["responses"]["422"]
        return document


def add_schemas(document: dict[str, Any], models: Sequence[type[BaseModel]]) -> None:
    """Add the schemas that `takes` and `refers` name."""
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REFS)
    document["components"]["schemas"].update(schemas["$defs"])


def add_keys(document: dict[str, Any], scopes: Mapping[str, str]) -> None:
    """Add which routes need a key, and of which scope; `scopes` has the scope of each path, "" if none."""
    scheme = {"type": "http", "scheme": "bearer", "description": "A key of `windlass keys make`."}
    document["components"]["securitySchemes"] = {BEARER: scheme}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            scope = scopes[path]
            operation["security"] = [{BEARER: []}] if scope else []
            operation["x-scope"] = scope or None
