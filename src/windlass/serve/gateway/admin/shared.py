"""What the admin routes share: the database, the actor for the audit log, errors in the API's codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError, plain
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.service import GatewayService
from windlass.serve.records.audit_log import Act, Actor, write_down
from windlass.serve.records.keys import ApiKeys
from windlass.spec.errors import AskedWrongly, InUse, NotFound, did_you_mean
from windlass.store.database import Database

NO_STORE = {"cache-control": "no-store"}

T = TypeVar("T")


def service_of(request: Request) -> GatewayService:
    service: GatewayService = request.app.state.service
    return service


def state_of(request: Request) -> Database:
    """Return the service's database; a gateway without one has no records."""
    database = service_of(request).database
    if database is None:
        raise ApiError("not_found", "this server runs without a database of records")
    return database


async def act(work: Callable[[], T]) -> T:
    """Run work on the records in a thread; turn its errors into ApiError."""
    try:
        return await asyncio.to_thread(work)
    except AskedWrongly as error:
        message = error.message if error.hint is None else f"{error.message}; {error.hint}"
        raise ApiError(_code(error), message) from None


def bound_of(request: Request) -> str | None:
    """Return the only tenant whose data the caller may see; None for the operator, who sees all."""
    return caller_of(request).bound or None


async def actor_of(request: Request) -> Actor:
    """Return the actor for the audit log."""
    caller = caller_of(request)
    address = request.client.host if request.client else ""
    if not caller.key:
        return Actor("", "anyone: keys are off", address)
    key = await asyncio.to_thread(ApiKeys(state_of(request)).by_id, caller.key)
    return Actor(caller.key, key.name if key else "", address)


async def record(request: Request, actor: Actor, what: Act) -> None:
    """Write an action of another process to the audit log; a gateway without a database has none."""
    database = service_of(request).database
    if database is not None:
        await asyncio.to_thread(write_down, database, actor, what, now_s=time.time())


def number_of(request: Request, name: str, default: int, minimum: int, maximum: int) -> int:
    """Read a whole number from the query."""
    given = request.query_params.getlist(name)
    if not given:
        return default
    text = given[0]
    if len(given) > 1 or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ApiError("invalid_value", f"'{name}' must be one whole number", param=name)
    if not minimum <= int(text) <= maximum:
        allowed = {"type": "integer", "minimum": minimum, "maximum": maximum}
        raise ApiError(
            "invalid_value", f"'{name}' must be {minimum} to {maximum}", param=name, allowed=allowed
        )
    return int(text)


def check_query(request: Request, names: list[str]) -> None:
    """Raise ApiError for unknown query parameters."""
    for name in request.query_params:
        if name not in names:
            message = f"'{plain(name, 100)}' is unknown; {did_you_mean(name[:100], names)}"
            raise ApiError("unknown_parameter", message, param=name, allowed={"enum": names})


def json_reply(reply: BaseModel) -> Response:
    """Return a reply that caches must not store."""
    return Response(reply.model_dump_json(), media_type="application/json", headers=NO_STORE)


def _code(error: AskedWrongly) -> str:
    if isinstance(error, NotFound):
        return "not_found"
    return "conflict" if isinstance(error, InUse) else "invalid_value"
