"""Turns the body of a control request into a checked model, or into one clear refusal."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import Request

from windlass.operate.control_errors import ControlError
from windlass.operate.control_replies import Body
from windlass.serve.gateway.bodies import parse as parse_json
from windlass.spec.read import parse

MOST_BODY_BYTES = 64 << 10
BODY_TIMEOUT_S = 10.0

B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B]) -> B:
    """Read and check a body; none at all is an empty object."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_bytes(request)
    except TimeoutError:
        raise ControlError("body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    return parse(model, parse_json(body) if body.strip() else {}, "body")


async def _read_bytes(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise ControlError("body_too_large", f"the body is larger than {MOST_BODY_BYTES} bytes")
    return body
