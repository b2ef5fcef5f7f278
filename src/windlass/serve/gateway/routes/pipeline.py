"""The steps of every route that uses the engine.

read the body -> deadline -> stored answer, if the request has an Idempotency-Key -> the route's own work
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from windlass.http.deadlines import deadline_of, within
from windlass.http.streaming import EventStream
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.idempotency import once, repeatable
from windlass.serve.gateway.observe.request_trace import request_trace_of
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.gateway.schemas.requests import GenerationRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, conversation_of

A = TypeVar("A", bound=GenerationRequest)
Work = Callable[[Request, A, GatewayService], Awaitable[Response]]


async def answer(request: Request, model: type[A], service: GatewayService, work: Work[A]) -> Response:
    """Answer a request within its deadline, and only once for each Idempotency-Key."""
    body = await read(request, model)
    deadline = request.scope["state"]["deadline"] = deadline_of(request, service.deadline_s)
    idempotent = repeatable(request, stream=bool(getattr(body, "stream", False)))
    if idempotent is not None:

        async def made() -> Response:
            return await within(deadline, work(request, body, service))

        return await once(idempotent, service.database, request.state.request_id, made)
    response = await within(deadline, work(request, body, service))
    if isinstance(response, EventStream):
        response.deadline = deadline
    return response


async def ready_endpoint(
    request: Request, body: GenerationRequest, service: GatewayService, opening: str | list[int]
) -> ModelEndpoint:
    """Return the endpoint of the model that a body names, once an engine has connected.

    Requests of a tenant's user, or with the same opening, get the same version.
    """
    conversation = conversation_of(caller_of(request).tenant, body.user, opening)
    endpoint = service.endpoint(body.model, conversation)
    if not endpoint.is_ready:
        await endpoint.wait_until_ready()
    request_trace_of(request).standby = endpoint.standby
    return endpoint
