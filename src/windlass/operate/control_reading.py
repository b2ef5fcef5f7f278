"""What routes of the control API read: the body of a request, as a checked model or one clear refusal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from windlass.operate.control_errors import ControlError
from windlass.serve.gateway.bodies import parse as parse_json
from windlass.spec.control import Body
from windlass.spec.read import parse

MOST_BODY_BYTES = 64 << 10
BODY_TIMEOUT_S = 10.0

B = TypeVar("B", bound=Body)


def home_of(request: Request) -> Path:
    """Return whose runs and models are asked about."""
    home: Path = request.app.state.home
    return home


def body_of(model: type[Body], *, required: bool = True) -> dict[str, Any]:
    """Describe the body of a route for the OpenAPI document."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


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
