"""What happens to every request of the control API before its route: an id, an origin check, a key.

Nothing is answered without a key but /healthz: a route that somebody adds is closed until a key opens it.
"""

from __future__ import annotations

import logging
import time
import traceback
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from windlass.control.api.control_errors import ControlError, refusal, respond
from windlass.control.api.control_keys import BY, ControlKey, ControlKeys, GatewayKey
from windlass.control.tenants.rate_limiter import TenantRateLimiter
from windlass.http.errors import plain
from windlass.http.origins import check
from windlass.http.streaming import CLIENT_LEFT
from windlass.serve.gateway.edge.middleware import ResponseScope
from windlass.spec.errors import WindlassError

OPEN = frozenset(("/healthz",))
READING = frozenset(("GET", "HEAD"))
TENANTS = ("/v1/queue", "/v1/shares", "/v1/plane", "/v1/jobs", "/v1/models", "/openapi.json")
"""Doors that tell a tenant's key of that tenant alone; all others are not there for it."""

log = logging.getLogger(__name__)


class ControlMiddleware:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, keys: ControlKeys | GatewayKey, loopback: bool) -> None:
        self._app, self._keys, self._loopback = app, keys, loopback
        self._turnstile = TenantRateLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = ResponseScope(scope, send)
        try:
            check(scope, loopback=self._loopback)
            key = scope["state"]["key"] = None if scope["path"] in OPEN else self._key(scope)
            with self._counted(key):
                await self._app(scope, receive, passage.send)
        except WindlassError as error:
            await respond(refusal(error), passage.request_id)(scope, receive, passage.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - the process door of a request
            places = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(f"{place.name}:{place.lineno}" for place in reversed(places))
            log.error("%s: %s at %s", passage.request_id, type(error).__name__, where)  # noqa: TRY400
            if passage.status == CLIENT_LEFT:
                mistake = ControlError("internal", f"a mistake of ours; the log has it: {passage.request_id}")
                await respond(mistake, passage.request_id)(scope, receive, passage.send)

    def _key(self, scope: Scope) -> ControlKey:
        """Return whose request it is, or refuse it."""
        headers = Headers(scope=scope)
        given = headers.getlist("authorization")
        kind, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        key = self._find(token.strip(), headers) if kind.lower() == "bearer" else None
        if key is None:
            raise ControlError(
                "unauthorized",
                "this needs a key that is known here",
                hint="send Authorization: Bearer KEY; `windlass control` prints one at its first start",
            )
        needed = "read" if scope["method"] in READING else "write"
        if needed not in key.scopes:
            raise ControlError("forbidden", f"key '{key.name}' may not {needed}", hint="use one that may")
        if key.tenant is not None and not is_tenants(scope["path"]):
            raise ControlError("not_found", f"there is no path {plain(scope['path'], 100)}")
        return key

    def _counted(self, key: ControlKey | None) -> AbstractContextManager[None]:
        """Hold a tenant to its part of what the API can do; whoever runs it is not held."""
        if key is None or key.tenant is None:
            return nullcontext()
        reason = self._turnstile.refusal(key.tenant, time.monotonic())
        if reason is not None:
            raise ControlError("too_many_requests", reason, hint="ask again in a second")
        return self._turnstile.passing(key.tenant)

    def _find(self, token: str, headers: Headers) -> ControlKey | None:
        if isinstance(self._keys, GatewayKey):
            return self._keys.find(token, headers.get(BY, ""))
        return self._keys.find(token)


def is_tenants(path: str) -> bool:
    """Tell whether a path is one of those that a tenant's key opens, or below it."""
    return any(path == door or path.startswith(f"{door}/") for door in TENANTS)
