"""What happens to every request, before and after its route: an id, an origin check, a key, a count.

The guard is the last door: whatever a route did not foresee becomes the envelope's `internal` error here,
and the log gets the place of the mistake, never the request's content. A key that is revoked or expires ends
what was begun with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
import traceback
from collections import defaultdict

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windlass.http.errors import ApiError, envelope
from windlass.http.headers import sent_with
from windlass.http.origins import check, is_preflight, preflight_response
from windlass.http.streaming import CLIENT_LEFT, error_event
from windlass.serve.gateway.edge.access import Access, KeyLookup, admit, look_up
from windlass.serve.gateway.observe.request_observer import RequestObserver
from windlass.serve.gateway.observe.request_trace import begin

SMALL_BODY_BYTES = 65536
"""A refused request's body up to this size is read past; a longer one is not worth its bytes."""
CLOSING = frozenset(
    {
        "malformed_request",
        "head_timeout",
        "body_timeout",
        "body_too_large",
        "unsupported_media_type",
        "shutting_down",
    }
)
"""Refusals after which nothing more is read from the connection."""
NOSNIFF = (b"x-content-type-options", b"nosniff")
CONTENT_TYPE, STREAM = b"content-type", b"text/event-stream"
LOOK_EVERY_S = 1.0
DRAIN_RETRY_S = 2.0

log = logging.getLogger(__name__)


class GatewayMiddleware:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, witness: RequestObserver, access: Access) -> None:
        self._app = app
        self._witness = witness
        self._access = access
        self._live: defaultdict[str, set[ResponseScope]] = defaultdict(set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._live_on(scope, receive, send)
            return
        passage = ResponseScope(scope, send)
        try:
            await self._pass(passage, scope, functools.partial(passage.journey.read, receive))
        except ApiError as error:
            await refuse(error, passage, scope, receive)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not passage.withdrawn:
                raise
            await passage.end(scope, receive)
        except Exception as error:  # noqa: BLE001 - the process door of a request
            await self._confess(error, passage, scope, receive)
        finally:
            passage.journey.route = str(getattr(scope.get("route"), "path", "other"))
            self._witness.see(passage.journey)

    async def _pass(self, passage: ResponseScope, scope: Scope, receive: Receive) -> None:
        """Look at a request, and let it in."""
        access = self._access
        passage.origin = check(scope, loopback=access.loopback, origins=access.origins)
        if passage.origin and is_preflight(scope):
            await preflight_response()(scope, receive, passage.send)
            return
        caller, token = await admit(scope.get("raw_path") or b"", sent_with(scope), access.keys)
        if access.draining and scope["path"] != "/healthz":
            raise ApiError("shutting_down", "the server is stopping", retry_after_s=DRAIN_RETRY_S)
        scope["state"]["caller"] = caller
        passage.journey.key, passage.journey.tenant = caller.key, caller.tenant
        if not token:
            await self._app(scope, receive, passage.send)
            return
        self._live[token].add(passage)
        try:
            await self._app(scope, receive, passage.send)
        finally:
            self._leave(token, passage)

    def _leave(self, token: str, passage: ResponseScope) -> None:
        passages = self._live[token]
        passages.discard(passage)
        if not passages:
            del self._live[token]

    async def _live_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch the keys that are in use for as long as the app lives."""
        keys = self._access.keys
        watch = None if keys is None else asyncio.create_task(self._watch(keys))
        try:
            await self._app(scope, receive, send)
        finally:
            if watch is not None:
                watch.cancel()

    async def _watch(self, keys: KeyLookup) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(ApiError):  # look_up has said it; the next look may succeed
                await self._withdraw(keys)

    async def _withdraw(self, keys: KeyLookup) -> None:
        """End every request whose key is no longer good."""
        for token in list(self._live):
            if await look_up(token, keys) is None:
                for passage in list(self._live.get(token, ())):
                    passage.withdraw()

    async def _confess(
        self, error: Exception, passage: ResponseScope, scope: Scope, receive: Receive
    ) -> None:
        places = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{place.name}:{place.lineno}" for place in reversed(places))
        log.error("%s: %s at %s", passage.request_id, type(error).__name__, where)
        if passage.status == CLIENT_LEFT:
            mistake = ApiError("internal", f"a mistake of ours; the log has it under {passage.request_id}")
            await respond(mistake, passage.request_id)(scope, receive, passage.send)


class ResponseScope:
    """One request on its way: its journey, and what was sent in answer so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.journey = begin(scope)
        self.journey.status = CLIENT_LEFT
        self.origin = ""
        """An origin of another site that may read the answer."""
        self.withdrawn = False
        self._streams = False
        self._send = send
        self._task = asyncio.current_task()

    @property
    def request_id(self) -> str:
        return self.journey.request_id

    @property
    def status(self) -> int:
        """The status of the answer; CLIENT_LEFT until there is one."""
        return self.journey.status

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.journey.status = message["status"]
            headers = message["headers"]
            self._streams = any(name == CONTENT_TYPE and value.startswith(STREAM) for name, value in headers)
            headers += self.journey.headers(time.monotonic())
            headers.append(NOSNIFF)
            if self.origin:
                shared = MutableHeaders(scope=message)
                shared["access-control-allow-origin"] = self.origin
                shared["access-control-expose-headers"] = "*"
                shared.add_vary_header("origin")
        await self._send(message)

    def withdraw(self) -> None:
        """Stop the work; the key that it was begun with is no longer good."""
        if self._task is not None and not self.withdrawn:
            self.withdrawn = True
            self._task.cancel()

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Tell the client of a request that was withdrawn, in the way that is still open."""
        assert self._task is not None
        self._task.uncancel()
        error = ApiError("unauthorized", "the key of this request has expired or was revoked")
        if self.status == CLIENT_LEFT:
            await respond(error, self.request_id)(scope, receive, self.send)
        elif self._streams:
            self.journey.code = error.code
            part = error_event(error, self.request_id)
            await self._send({"type": "http.response.body", "body": part, "more_body": False})


async def refuse(error: ApiError, passage: ResponseScope, scope: Scope, receive: Receive) -> None:
    """Answer a request that was not let in; a long body of it is not waited for."""
    response = respond(error, passage.request_id)
    sent = sent_with(scope)
    if b"transfer-encoding" in sent or int(sent.get(b"content-length", b"0")) > SMALL_BODY_BYTES:
        response.headers["connection"] = "close"
    await response(scope, receive, passage.send)


class Refusal(JSONResponse):
    """An error's HTTP form; when it is sent, the request's journey learns the code."""

    def __init__(self, error: ApiError, request_id: str, headers: dict[str, str]) -> None:
        super().__init__(envelope(error, request_id), error.status, headers)
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["journey"].code = self._code
        await super().__call__(scope, receive, send)


def respond(error: ApiError, request_id: str) -> Refusal:
    """Return the HTTP form of an error; a body that was not read to its end closes the connection."""
    headers = error.headers
    if error.code in CLOSING:
        headers = headers | {"connection": "close"}
    return Refusal(error, request_id, headers)
