"""Turns the bytes of a body into a validated request, or raises one clear error.

Input: an HTTP request. Output: an instance of a model of `requests`. Every value is checked before the prompt
is tokenised.
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
    """Read and validate the body of a request."""
    value = request.scope["state"]["body"] = parse(await read_bytes(request))
    return check(model, value)


def check(model: type[A], value: dict[str, Any]) -> A:
    """Validate an object against a model; raise the most specific mistake as an ApiError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        refusal = explain(model, error)
    refusal.corrected = repaired(model, value)
    try:
        raise refusal
    finally:
        del refusal  # breaks the reference cycle of the exception and this frame
