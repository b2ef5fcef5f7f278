"""What routes of the control API read: the body of a request, as a checked model or one clear refusal."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request

from windlass.control.api.control_errors import ControlError
from windlass.control.tenants.impersonate import as_user
from windlass.control.tenants.tenant_registry import TenantContext, TenantRegistry
from windlass.http.json_body import parse as parse_json
from windlass.spec.protocol.control import ControlBody
from windlass.spec.read import parse

MAX_BODY_BYTES = 64 << 10
BODY_TIMEOUT_S = 10.0

B = TypeVar("B", bound=ControlBody)


T = TypeVar("T")


def home_of(request: Request) -> Path:
    """Return whose runs and models are asked about: those of the key's tenant."""
    lodging = lodging_of(request)
    return lodging.home if lodging is not None else home_of_all(request)


def home_of_all(request: Request) -> Path:
    home: Path = request.app.state.home
    return home


def lodging_of(request: Request) -> TenantContext | None:
    """Return where the tenant of the key lives; None for whoever runs the installation.

    It is looked up once for a request, before the rights of the tenant are taken.
    """
    if not hasattr(request.state, "lodging"):
        tenant: str | None = request.state.key.tenant
        house: TenantRegistry = request.app.state.house
        request.state.lodging = None if tenant is None else house.lodging(tenant)
    found: TenantContext | None = request.state.lodging
    return found


def with_rights(request: Request, work: Callable[[], T]) -> T:
    """Do something with files that the tenant of the key may do with them, and no more."""
    lodging = lodging_of(request)
    with as_user(None if lodging is None else lodging.uid):
        return work()


class OwnRoute(APIRoute):
    """A route whose work in threads is done with the rights of whoever asks."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = _with_rights(endpoint)
        super().__init__(path, endpoint, **more)


def _with_rights(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    def wrapped(*args: Any, **named: Any) -> Any:
        request = named.get("request")
        if request is None:
            return endpoint(*args, **named)
        return with_rights(request, lambda: endpoint(*args, **named))

    return wrapped


def body_of(model: type[ControlBody], *, required: bool = True) -> dict[str, Any]:
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
        if len(body) > MAX_BODY_BYTES:
            raise ControlError("body_too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")
    return body
