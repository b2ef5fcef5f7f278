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
from windlass.serve.gateway.routes.pipeline import ready_endpoint
from windlass.serve.gateway.schemas.replies import EmbeddingItem, EmbeddingReply, EmbeddingUsage
from windlass.serve.gateway.schemas.requests import EmbeddingRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint
from windlass.spec.protocol.wire import Embed, EmbeddingVectors

INPUTS_PER_MESSAGE = 64
"""Vectors come back in one frame; this many of the widest models stay far below its size limit."""


async def embed(request: Request, body: EmbeddingRequest, service: GatewayService) -> Response:
    """Answer a request with one vector for each input."""
    endpoint = await ready_endpoint(request, body, service, "embeddings")
    inputs = await prepare(body, endpoint)
    read = sum(map(len, inputs))
    vectors = await while_connected(request, _vectors(endpoint, body, inputs, request))
    if vectors is None:
        return Response(status_code=CLIENT_LEFT)
    reply = EmbeddingReply(
        object="list",
        data=[
            EmbeddingItem(object="embedding", index=place, embedding=_written(vector, body.encoding_format))
            for place, vector in enumerate(vectors)
        ],
        model=endpoint.id,
        usage=EmbeddingUsage(prompt_tokens=read, total_tokens=read),
    )
    return Response(reply.model_dump_json(), media_type="application/json")


async def prepare(body: EmbeddingRequest, endpoint: ModelEndpoint) -> list[list[int]]:
    """Check a request against the model, and tokenise its inputs."""
    model_info = endpoint.model_info
    if endpoint.adapter:
        raise ApiError("wrong_model_kind", "adapters have no embeddings; use the base model", param="model")
    if not model_info.width:
        raise ApiError(
            "wrong_model_kind",
            f"'{endpoint.id}' is of family {model_info.family}, which has no embeddings; it generates text",
            param="model",
        )
    if body.dimensions is not None and body.dimensions != model_info.width:
        raise ApiError(
            "invalid_value",
            f"'dimensions' must be {model_info.width}, the model's width, got {body.dimensions}",
            param="dimensions",
            allowed={"const": model_info.width},
        )
    return [await _tokens(endpoint, entry, model_info.context) for entry in body.input]


async def _tokens(endpoint: ModelEndpoint, entry: str | list[int], context: int) -> list[int]:
    tokens = await endpoint.encode(entry, special=True, param="input")
    if len(tokens) > context:
        raise ApiError(
            "context_length_exceeded",
            f"an input has {len(tokens)} tokens; the model's context is {context}",
            param="input",
        )
    return tokens


async def _vectors(
    endpoint: ModelEndpoint, body: EmbeddingRequest, inputs: list[list[int]], request: Request
) -> list[list[float]]:
    """Send the engine a few inputs at a time, so that one big request does not delay others."""
    caller, work_id, trace = caller_of(request), request.state.work_id, request_trace_of(request)
    vectors: list[list[float]] = []
    for start in range(0, len(inputs), INPUTS_PER_MESSAGE):
        message = Embed(
            id=f"{work_id}-{start}",
            inputs=inputs[start : start + INPUTS_PER_MESSAGE],
            model=endpoint.model,
            tenant=caller.tenant,
            priority=body.priority or 0,
        )
        with closing(
            await endpoint.service.submit(caller, [message], request.state.deadline, trace)
        ) as handle:
            vectors += await _answer(handle)
    return vectors


async def _answer(handle: RequestHandle) -> list[list[float]]:
    ((_, message),) = await handle.next()
    assert isinstance(message, EmbeddingVectors)
    return message.vectors


def _written(vector: list[float], form: str | None) -> list[float] | str:
    if form != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
