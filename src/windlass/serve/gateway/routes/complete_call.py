"""POST /v1/complete-call: completes a half-typed call from this gateway's own OpenAPI document.

It needs no engine and counts against no limit. The suggestions come from windlass.completion, which is given
the document and the names of the served models.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from windlass.completion.complete import complete, names_of
from windlass.completion.suggestions import Suggestions
from windlass.serve.gateway.schemas.requests import RequestBody
from windlass.serve.gateway.service import GatewayService

MAX_CHARS = 1 << 14
LONG_CHARS = 2048
"""Longer texts are completed in a thread, so that they do not delay streams."""


class CompleteCallRequest(RequestBody):
    """POST /v1/complete-call."""

    text: str = Field(
        max_length=MAX_CHARS,
        description="A JSON body, a curl command or Python, typed so far.",
    )
    cursor: int | None = Field(
        None,
        ge=0,
        le=MAX_CHARS,
        description="Position of the cursor, in characters; default: the end.",
    )
    kind: Literal["auto", "json", "curl", "python"] | None = Field(
        None, description="The kind of the text.", json_schema_extra={"x-default": "auto"}
    )
    path: str | None = Field(
        None, max_length=256, description="The route of a JSON body; default: inferred from its keys."
    )


class CallCandidate(BaseModel):
    """A suggestion: replace the characters [from, to) with `insert`."""

    text: str
    insert: str
    replace: tuple[int, int]
    type: str
    range: str
    default: str
    about: str


class CallFix(BaseModel):
    """A mistake and its correction."""

    about: str
    insert: str
    replace: tuple[int, int]


class CallExplanation(BaseModel):
    """Documentation of the field, header or path under the cursor."""

    name: str
    type: str
    range: str
    default: str
    about: str
    required: bool
    values: list[str]


class WrittenCall(BaseModel):
    """The whole call, which the server accepts; texts are empty while the route is unknown."""

    curl: str = ""
    python: str = ""
    javascript: str = ""
    java: str = ""
    json_: str = Field("", alias="json")


class CompleteCallReply(BaseModel):
    """The answer to POST /v1/complete-call."""

    object: Literal["completed_call"]
    kind: Literal["json", "curl", "python"]
    method: str
    path: str
    candidates: list[CallCandidate]
    """The best first."""
    fixes: list[CallFix]
    fixed: str
    """The text with all fixes applied."""
    explains: CallExplanation | None
    call: WrittenCall


async def complete_call(request: Request, body: CompleteCallRequest, service: GatewayService) -> Response:
    """Complete a half-typed call."""
    if len(body.text) <= LONG_CHARS:
        suggestions = _suggest(request, body, service)
    else:
        suggestions = await asyncio.to_thread(_suggest, request, body, service)
    reply = CompleteCallReply.model_validate({"object": "completed_call", **suggestions.as_json()})
    return Response(reply.model_dump_json(by_alias=True), media_type="application/json")


def _suggest(request: Request, body: CompleteCallRequest, service: GatewayService) -> Suggestions:
    kind = body.kind or "auto"
    return complete(
        body.text,
        body.cursor,
        document=request.app.openapi(),
        models=names_of([endpoint.id for endpoint in service.endpoints()]),
        kind=kind,
        path=body.path or "",
        server=str(request.base_url).removesuffix("/"),
    )
