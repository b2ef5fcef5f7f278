"""The body of every error reply, as a model for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from windlass.http.errors import CODES


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
