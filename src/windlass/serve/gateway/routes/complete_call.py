"""POST /v1/complete-call: what could come next in a half-typed call, from this gateway's own document.

The engine is not asked, and no limit is counted: it is the document and the names of the models that answer.
What is offered, and how, is windlass.completion.
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
"""Longer texts are looked at in a thread, so that streams go on."""


class CompleteCallRequest(RequestBody):
    """POST /v1/complete-call."""

    text: str = Field(
        max_length=MAX_CHARS,
        description="A body of JSON, a curl command or Python, as far as it has been typed.",
    )
    cursor: int | None = Field(
        None,
        ge=0,
        le=MAX_CHARS,
        description="Where the cursor stands, in characters; at the end if left out.",
    )
    kind: Literal["auto", "json", "curl", "python"] | None = Field(
        None, description="What the text is.", json_schema_extra={"x-default": "auto"}
    )
    path: str | None = Field(
        None, max_length=256, description="The route that a body of JSON is for; its keys tell if left out."
    )


class CallCandidate(BaseModel):
    """One thing that may stand at the cursor: put `insert` in the place of the characters [from, to)."""

    text: str
    insert: str
    replace: tuple[int, int]
    type: str
    range: str
    default: str
    about: str


class CallFix(BaseModel):
    """A slip, and what sets it right."""

    about: str
    insert: str
    replace: tuple[int, int]


class CallExplanation(BaseModel):
    """What is known of the field, header or path under the cursor."""

    name: str
    type: str
    range: str
    default: str
    about: str
    required: bool
    values: list[str]


class WrittenCall(BaseModel):
    """The whole call, which the server takes; texts are empty where no route is known yet."""

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
    """The likeliest first."""
    fixes: list[CallFix]
    fixed: str
    """The text with all fixes made."""
    explains: CallExplanation | None
    call: WrittenCall


async def complete_call(request: Request, ask: CompleteCallRequest, service: GatewayService) -> Response:
    """Say what could come next."""
    if len(ask.text) <= LONG_CHARS:
        offer = _offer(request, ask, service)
    else:
        offer = await asyncio.to_thread(_offer, request, ask, service)
    reply = CompleteCallReply.model_validate({"object": "completed_call", **offer.as_json()})
    return Response(reply.model_dump_json(by_alias=True), media_type="application/json")


def _offer(request: Request, ask: CompleteCallRequest, service: GatewayService) -> Suggestions:
    kind = ask.kind or "auto"
    return complete(
        ask.text,
        ask.cursor,
        document=request.app.openapi(),
        models=names_of([desk.id for desk in service.desks()]),
        kind=kind,
        path=ask.path or "",
        server=str(request.base_url).removesuffix("/"),
    )
