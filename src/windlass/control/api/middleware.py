"""Middleware of the control API: every request gets an id, an origin check and a key check.

Only /healthz is answered without a key; a new route needs a key by default.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from windlass.control.api.control_errors import ControlError, refusal
from windlass.control.api.control_keys import BY, ControlKey, ControlKeys, GatewayKey
from windlass.control.tenants.rate_limiter import TenantRateLimiter
from windlass.http.bearer import bearer_token
from windlass.http.error_reply import respond
from windlass.http.errors import plain, raised_at
from windlass.http.headers import RequestHeaders, sent_with
from windlass.http.origins import check
from windlass.http.streaming import CLIENT_LEFT
from windlass.serve.gateway.edge.middleware import ResponseScope
from windlass.spec.errors import WindlassError

AUTHORIZATION = b"authorization"
OPEN = frozenset(("/healthz",))
READING = frozenset(("GET", "HEAD"))
TENANTS = ("/v1/queue", "/v1/shares", "/v1/plane", "/v1/jobs", "/v1/models", "/openapi.json")
"""Paths that a tenant's key may use, and that show that tenant's data only; all others are 404 for it."""

log = logging.getLogger(__name__)


class ControlMiddleware:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, keys: ControlKeys | GatewayKey, loopback: bool) -> None:
        self._app, self._keys, self._loopback = app, keys, loopback
        self._rate_limiter = TenantRateLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = ResponseScope(scope, send)
        try:
            check(scope, loopback=self._loopback)
            key = scope["state"]["key"] = None if scope["path"] in OPEN else self._key(scope)
            with self._counted(key):
                await self._app(scope, receive, response.send)
        except WindlassError as error:
            await respond(refusal(error), response.request_id)(scope, receive, response.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - top of a request
            where = raised_at(error)
            log.error("%s: %s at %s", response.request_id, type(error).__name__, where)  # noqa: TRY400
            if response.status == CLIENT_LEFT:
                internal = ControlError("internal", f"internal error {response.request_id} (see the log)")
                await respond(internal, response.request_id)(scope, receive, response.send)

    def _key(self, scope: Scope) -> ControlKey:
        """Return the key of a request, or refuse it."""
        sent = sent_with(scope)
        given = sent[AUTHORIZATION] if sent.times(AUTHORIZATION) == 1 else b""
        token = bearer_token(given)
        key = None if token is None else self._find(token, sent)
        if key is None:
            raise ControlError(
                "unauthorized",
                "a valid key is required",
                hint="send Authorization: Bearer KEY; `windlass control` prints one at its first start",
            )
        needed = "read" if scope["method"] in READING else "write"
        if needed not in key.scopes:
            raise ControlError(
                "forbidden", f"key '{key.name}' may not {needed}", hint="use a key with that scope"
            )
        if key.tenant is not None and not is_tenants(scope["path"]):
            raise ControlError("not_found", f"there is no path {plain(scope['path'], 100)}")
        return key

    def _counted(self, key: ControlKey | None) -> AbstractContextManager[None]:
        """Apply the rate limit of the key's tenant; administrators have none."""
        if key is None or key.tenant is None:
            return nullcontext()
        reason = self._rate_limiter.refusal(key.tenant, time.monotonic())
        if reason is not None:
            raise ControlError("too_many_requests", reason, hint="try again in a second")
        return self._rate_limiter.counted(key.tenant)

    def _find(self, token: str, sent: RequestHeaders) -> ControlKey | None:
        if isinstance(self._keys, GatewayKey):
            return self._keys.find(token, sent.get(BY, b"").decode("latin-1"))
        return self._keys.find(token)


def is_tenants(path: str) -> bool:
    """Return whether a tenant's key may use a path."""
    return any(path == route or path.startswith(f"{route}/") for route in TENANTS)
