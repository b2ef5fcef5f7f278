"""What the routes that make the engine work share: their headers, and the order of things.

body -> deadline -> stored answer, if it was asked with a key -> the route's own work
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from windlass.http.deadlines import deadline_of, within
from windlass.http.streaming import EventStream
from windlass.serve.gateway.idempotency import once, repeatable
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.gateway.schemas.requests import GenerationRequest
from windlass.serve.gateway.service import GatewayService

A = TypeVar("A", bound=GenerationRequest)
Work = Callable[[Request, A, GatewayService], Awaitable[Response]]


async def answer(request: Request, model: type[A], service: GatewayService, work: Work[A]) -> Response:
    """Answer a request within its deadline, and once for each key."""
    ask = await read(request, model)
    deadline = request.scope["state"]["deadline"] = deadline_of(request, service.deadline_s)
    asked = repeatable(request, stream=bool(getattr(ask, "stream", False)))
    if asked is not None:

        async def made() -> Response:
            return await within(deadline, work(request, ask, service))

        return await once(asked, service.database, request.state.request_id, made)
    response = await within(deadline, work(request, ask, service))
    if isinstance(response, EventStream):
        response.deadline = deadline
    return response
