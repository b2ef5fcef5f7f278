"""Middleware around every route: request id, origin check, authentication, recording.

An unexpected exception becomes the error `internal` here; the log gets its place in the code, never the
content of the request. When a key is revoked or expires, its running requests are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import defaultdict

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windlass.http.error_reply import respond
from windlass.http.errors import ApiError, raised_at
from windlass.http.headers import sent_with
from windlass.http.origins import check, is_preflight, preflight_response
from windlass.http.streaming import CLIENT_LEFT, error_event
from windlass.serve.gateway.edge.access import Access, KeyLookup, authorise, look_up
from windlass.serve.gateway.observe.request_observer import RequestObserver
from windlass.serve.gateway.observe.request_trace import begin

SMALL_BODY_BYTES = 65536
"""The body of a refused request is read up to this size; for a longer one the connection is closed."""
NOSNIFF = (b"x-content-type-options", b"nosniff")
CONTENT_TYPE, STREAM = b"content-type", b"text/event-stream"
CHECK_KEYS_S = 1.0
DRAIN_RETRY_S = 2.0

log = logging.getLogger(__name__)


class GatewayMiddleware:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, observer: RequestObserver, access: Access) -> None:
        self._app = app
        self._observer = observer
        self._access = access
        self._live: defaultdict[str, set[ResponseScope]] = defaultdict(set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._live_on(scope, receive, send)
            return
        response = ResponseScope(scope, send)
        try:
            await self._handle(response, scope, functools.partial(response.trace.read, receive))
        except ApiError as error:
            await refuse(error, response, scope, receive)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not response.withdrawn:
                raise
            await response.end(scope, receive)
        except Exception as error:  # noqa: BLE001 - the last handler of a request
            await self._report(error, response, scope, receive)
        finally:
            response.trace.route = str(getattr(scope.get("route"), "path", "other"))
            self._observer.record(response.trace)

    async def _handle(self, response: ResponseScope, scope: Scope, receive: Receive) -> None:
        """Check a request and pass it to the routes."""
        access = self._access
        response.origin = check(scope, loopback=access.loopback, origins=access.origins)
        if response.origin and is_preflight(scope):
            await preflight_response()(scope, receive, response.send)
            return
        caller, token = await authorise(scope.get("raw_path") or b"", sent_with(scope), access.keys)
        if access.draining and scope["path"] != "/healthz":
            raise ApiError("shutting_down", "the server is stopping", retry_after_s=DRAIN_RETRY_S)
        scope["state"]["caller"] = caller
        response.trace.key, response.trace.tenant = caller.key, caller.tenant
        if not token:
            await self._app(scope, receive, response.send)
            return
        self._live[token].add(response)
        try:
            await self._app(scope, receive, response.send)
        finally:
            self._forget(token, response)

    def _forget(self, token: str, response: ResponseScope) -> None:
        responses = self._live[token]
        responses.discard(response)
        if not responses:
            del self._live[token]

    async def _live_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the keys in use while the app runs."""
        keys = self._access.keys
        watch = None if keys is None else asyncio.create_task(self._watch(keys))
        try:
            await self._app(scope, receive, send)
        finally:
            if watch is not None:
                watch.cancel()

    async def _watch(self, keys: KeyLookup) -> None:
        while True:
            await asyncio.sleep(CHECK_KEYS_S)
            with contextlib.suppress(ApiError):  # look_up has logged it; the next check may succeed
                await self._withdraw_revoked(keys)

    async def _withdraw_revoked(self, keys: KeyLookup) -> None:
        """Cancel every request whose key is no longer valid."""
        for token in list(self._live):
            if await look_up(token, keys) is None:
                for response in list(self._live.get(token, ())):
                    response.withdraw()

    async def _report(
        self, error: Exception, response: ResponseScope, scope: Scope, receive: Receive
    ) -> None:
        log.error("%s: %s at %s", response.request_id, type(error).__name__, raised_at(error))
        if response.status == CLIENT_LEFT:
            internal = ApiError("internal", f"internal error {response.request_id} (see the server's log)")
            await respond(internal, response.request_id)(scope, receive, response.send)


class ResponseScope:
    """The response to one request: its trace, and what has been sent so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.trace = begin(scope)
        self.trace.status = CLIENT_LEFT
        self.origin = ""
        """The origin of another site that may read the answer (CORS)."""
        self.withdrawn = False
        self._streams = False
        self._send = send
        self._task = asyncio.current_task()

    @property
    def request_id(self) -> str:
        return self.trace.request_id

    @property
    def status(self) -> int:
        """The status of the response; CLIENT_LEFT until it has begun."""
        return self.trace.status

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.trace.status = message["status"]
            headers = message["headers"]
            self._streams = any(name == CONTENT_TYPE and value.startswith(STREAM) for name, value in headers)
            headers += self.trace.headers(time.monotonic())
            headers.append(NOSNIFF)
            if self.origin:
                shared = MutableHeaders(scope=message)
                shared["access-control-allow-origin"] = self.origin
                shared["access-control-expose-headers"] = "*"
                shared.add_vary_header("origin")
        await self._send(message)

    def withdraw(self) -> None:
        """Cancel the request, because its key is no longer valid."""
        if self._task is not None and not self.withdrawn:
            self.withdrawn = True
            self._task.cancel()

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Send the error of a cancelled request: as the response, or as the last event of a stream."""
        assert self._task is not None
        self._task.uncancel()
        error = ApiError("unauthorized", "the key of this request has expired or was revoked")
        if self.status == CLIENT_LEFT:
            await respond(error, self.request_id)(scope, receive, self.send)
        elif self._streams:
            self.trace.code = error.code
            part = error_event(error, self.request_id)
            await self._send({"type": "http.response.body", "body": part, "more_body": False})


async def refuse(error: ApiError, response: ResponseScope, scope: Scope, receive: Receive) -> None:
    """Send the error of a refused request without reading a long body."""
    reply = respond(error, response.request_id)
    sent = sent_with(scope)
    if b"transfer-encoding" in sent or int(sent.get(b"content-length", b"0")) > SMALL_BODY_BYTES:
        reply.headers["connection"] = "close"
    await reply(scope, receive, response.send)
