"""Turns the bytes of a body into a checked request, or into one clear refusal.

Input: an HTTP request. Output: an instance of a model of requests.py. Every value is checked before a token
is made.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from windlass.http.json_body import parse, read_bytes
from windlass.serve.gateway.schemas.requests import RequestBody
from windlass.serve.gateway.schemas.validation_errors import explain, repaired

A = TypeVar("A", bound=RequestBody)


async def read(request: Request, model: type[A]) -> A:
    """Read and check the body of a request."""
    value = request.scope["state"]["body"] = parse(await read_bytes(request))
    return check(model, value)


def check(model: type[A], value: dict[str, Any]) -> A:
    """Check an object against a model; the most specific mistake becomes the refusal."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        refusal = explain(model, error)
    refusal.corrected = repaired(model, value)
    try:
        raise refusal
    finally:
        del refusal  # or it and this frame would hold each other
