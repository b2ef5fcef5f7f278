"""POST /v1/embeddings: texts in, unit vectors out.

Input: an EmbeddingRequest. Output: an EmbeddingReply.
"""

from __future__ import annotations

import base64
import struct
from contextlib import closing

from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError
from windlass.http.streaming import CLIENT_LEFT, while_connected
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.fleet.request_handle import RequestHandle
from windlass.serve.gateway.observe.request_trace import request_trace_of
from windlass.serve.gateway.schemas.replies import EmbeddingItem, EmbeddingReply, EmbeddingUsage
from windlass.serve.gateway.schemas.requests import EmbeddingRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, conversation_of
from windlass.spec.protocol.wire import Embed, EmbeddingVectors

INPUTS_PER_MESSAGE = 64
"""Vectors come back in one frame; so many of the widest models stay far below the wire's limit."""


async def embed(request: Request, ask: EmbeddingRequest, service: GatewayService) -> Response:
    """Answer a request with one vector for each input."""
    tenant = caller_of(request).tenant
    desk = service.desk(ask.model, conversation_of(tenant, ask.user, "embeddings"))
    if not desk.is_ready:
        await desk.meet()
    request_trace_of(request).standby = desk.standby
    inputs = await prepare(ask, desk)
    read = sum(map(len, inputs))
    vectors = await while_connected(request, _vectors(desk, ask, inputs, request))
    if vectors is None:
        return Response(status_code=CLIENT_LEFT)
    reply = EmbeddingReply(
        object="list",
        data=[
            EmbeddingItem(object="embedding", index=place, embedding=_written(vector, ask.encoding_format))
            for place, vector in enumerate(vectors)
        ],
        model=desk.id,
        usage=EmbeddingUsage(prompt_tokens=read, total_tokens=read),
    )
    return Response(reply.model_dump_json(), media_type="application/json")


async def prepare(ask: EmbeddingRequest, desk: ModelEndpoint) -> list[list[int]]:
    """Check a request against the model, and tokenise its inputs."""
    offered = desk.offered
    if desk.adapter:
        raise ApiError(
            "wrong_model_kind", "adapters change what a model writes; ask its model to embed", param="model"
        )
    if not offered.width:
        raise ApiError(
            "wrong_model_kind",
            f"'{desk.id}' is of family {offered.family}, which has no vectors; it writes and scores text",
            param="model",
        )
    if ask.dimensions is not None and ask.dimensions != offered.width:
        raise ApiError(
            "invalid_value",
            f"'dimensions' is {ask.dimensions}; vectors of this model have {offered.width}, and are not cut",
            param="dimensions",
            allowed={"const": offered.width},
        )
    return [await _tokens(desk, entry, offered.context) for entry in ask.input]


async def _tokens(desk: ModelEndpoint, entry: str | list[int], context: int) -> list[int]:
    tokens = await desk.encode(entry, special=True, param="input")
    if len(tokens) > context:
        raise ApiError(
            "context_length_exceeded",
            f"an input has {len(tokens)} tokens; the model's context is {context}",
            param="input",
        )
    return tokens


async def _vectors(
    desk: ModelEndpoint, ask: EmbeddingRequest, inputs: list[list[int]], request: Request
) -> list[list[float]]:
    """Ask the engine for a few inputs at a time, so that one big request does not hold up the others."""
    caller, work_id, journey = caller_of(request), request.state.work_id, request_trace_of(request)
    vectors: list[list[float]] = []
    for start in range(0, len(inputs), INPUTS_PER_MESSAGE):
        message = Embed(
            id=f"{work_id}-{start}",
            inputs=inputs[start : start + INPUTS_PER_MESSAGE],
            model=desk.model,
            tenant=caller.tenant,
            priority=ask.priority or 0,
        )
        with closing(await desk.service.ask(caller, [message], request.state.deadline, journey)) as ticket:
            vectors += await _answer(ticket)
    return vectors


async def _answer(ticket: RequestHandle) -> list[list[float]]:
    ((_, message),) = await ticket.next()
    assert isinstance(message, EmbeddingVectors)
    return message.vectors


def _written(vector: list[float], form: str | None) -> list[float] | str:
    if form != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
