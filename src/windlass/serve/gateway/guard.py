"""What happens to every request, before and after its route: an id, an origin check, a count.

The guard is the last door: whatever a route did not foresee becomes the envelope's `internal` error here,
and the log gets the place of the mistake, never the request's content.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
import traceback
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windlass.serve.gateway.caller import ANYONE
from windlass.serve.gateway.errors import ApiError, envelope
from windlass.serve.gateway.metrics import Metrics
from windlass.serve.gateway.streaming import CLIENT_LEFT

MOST_URL_BYTES = 8192

log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, metrics: Metrics, loopback: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = Passage(scope, send)
        try:
            check(scope, loopback=self._loopback)
            scope["state"]["caller"] = ANYONE
            await self._app(scope, receive, passage.send)
        except ApiError as error:
            await respond(error, passage.request_id)(scope, receive, passage.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - the process door of a request
            await self._confess(error, passage, scope, receive)
        finally:
            self._count(scope, passage)

    async def _confess(self, error: Exception, passage: Passage, scope: Scope, receive: Receive) -> None:
        places = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{place.name}:{place.lineno}" for place in reversed(places))
        log.error("%s: %s at %s", passage.request_id, type(error).__name__, where)
        if passage.status == CLIENT_LEFT:
            mistake = ApiError("internal", f"a mistake of ours; the log has it under {passage.request_id}")
            await respond(mistake, passage.request_id)(scope, receive, passage.send)

    def _count(self, scope: Scope, passage: Passage) -> None:
        route = str(getattr(scope.get("route"), "path", "other"))
        self._metrics.requests.labels(route, str(passage.status)).inc()
        self._metrics.request_s.labels(route).observe(time.monotonic() - passage.began)


class Passage:
    """One request on its way: its id, when it began, and the status that it was answered with."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = secrets.token_hex(12)
        self.began = time.monotonic()
        self.status = CLIENT_LEFT
        self._send = send
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers["x-content-type-options"] = "nosniff"
        await self._send(message)


def respond(error: ApiError, request_id: str) -> JSONResponse:
    """Return the HTTP form of an error; a body that was not read to its end closes the connection."""
    headers = error.headers
    if error.code in ("body_too_large", "body_timeout", "unsupported_media_type"):
        headers = headers | {"connection": "close"}
    return JSONResponse(envelope(error, request_id), status_code=error.status, headers=headers)


def check(scope: Scope, *, loopback: bool) -> None:
    """Refuse what a web page from elsewhere makes a browser send, and what nobody sends by accident."""
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MOST_URL_BYTES:
        raise ApiError("url_too_long", f"the path and query have more than {MOST_URL_BYTES} bytes")
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if loopback and not all(is_loopback(_hostname(host)) for host in hosts):
        raise ApiError("foreign_host", "this server answers to localhost and loopback addresses only")
    for origin in headers.getlist("origin"):
        if urlsplit(origin).netloc not in hosts:
            raise ApiError(
                "foreign_origin", "only the page that this server serves may call it from a browser"
            )


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
