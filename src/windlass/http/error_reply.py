"""Error replies: how they are sent, and their body as a model for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from windlass.http.errors import CODES, ApiError, envelope

CLOSING = frozenset(
    {
        "malformed_request",
        "head_timeout",
        "body_timeout",
        "body_too_large",
        "unsupported_media_type",
        "shutting_down",
    }
)
"""Errors after which the connection is closed."""


class Refusal(JSONResponse):
    """An error as an HTTP response; sending it records the code in the request's trace."""

    def __init__(self, error: ApiError, request_id: str, headers: dict[str, str]) -> None:
        super().__init__(envelope(error, request_id), error.status, headers)
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["trace"].code = self._code
        await super().__call__(scope, receive, send)


def respond(error: ApiError, request_id: str) -> Refusal:
    """Return an error as an HTTP response; it closes the connection if the body was not fully read."""
    headers = error.headers
    if error.code in CLOSING:
        headers = headers | {"connection": "close"}
    return Refusal(error, request_id, headers)


class ErrorBody(BaseModel):
    """What went wrong, where, and what would be right; `doc_url` explains the code."""

    code: str = Field(json_schema_extra={"enum": list(CODES)})
    type: str
    message: str
    param: str | None
    """The place in the body: messages[0].content."""
    path: str | None
    """The same place as a JSON path: $.messages[0].content."""
    allowed: dict[str, Any] | None
    """What is valid there, in keywords of JSON Schema: {"type": "number", "minimum": 0, "maximum": 2}."""
    corrected: dict[str, Any] | None
    """A whole body that would be accepted, if that is certain."""
    doc_url: str
    request_id: str


class ErrorReply(BaseModel):
    """The body of every error reply."""

    error: ErrorBody
