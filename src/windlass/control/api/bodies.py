"""Request helpers of the control API: bodies as checked models, and the tenant of a request."""

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
    """Return the home of the key's tenant."""
    context = tenant_context(request)
    return context.home if context is not None else home_of_all(request)


def home_of_all(request: Request) -> Path:
    home: Path = request.app.state.home
    return home


def tenant_context(request: Request) -> TenantContext | None:
    """Return the context of the key's tenant; None for an administrator's key.

    It is looked up once per request, before the thread takes the rights of the tenant.
    """
    if not hasattr(request.state, "context"):
        tenant: str | None = request.state.key.tenant
        tenants: TenantRegistry = request.app.state.tenants
        request.state.context = None if tenant is None else tenants.context(tenant)
    found: TenantContext | None = request.state.context
    return found


def with_rights(request: Request, work: Callable[[], T]) -> T:
    """Run `work` with the file access rights of the key's tenant."""
    context = tenant_context(request)
    with as_user(None if context is None else context.uid):
        return work()


class OwnRoute(APIRoute):
    """A route whose work in threads is done with the rights of the caller's tenant."""

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
    """Read and check a body; an empty body is an empty object."""
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
