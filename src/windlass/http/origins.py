"""Checks the headers Host and Origin.

A web page of another origin can make a browser send requests here. It may do so only if its origin was
allowed when the server was started; cookies and other credentials of the browser are never used.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Scope

from windlass.http.errors import ApiError
from windlass.http.headers import RequestHeaders, sent_with
from windlass.spec.serve import is_loopback

MAX_URL_BYTES = 8192


def check(scope: Scope, *, loopback: bool, origins: frozenset[str] = frozenset()) -> str:
    """Raise ApiError for requests of foreign web pages, and for oversized or ambiguous heads.

    Returns the allowed foreign origin of the request, or "".
    """
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_URL_BYTES:
        raise ApiError("url_too_long", f"the path and query have more than {MAX_URL_BYTES} bytes")
    sent = sent_with(scope)
    host = sent.get(b"host")
    if (times := sent.times(b"host")) > 1:
        raise ApiError("malformed_request", f"there are {times} Host headers; send one")
    if loopback and host is not None and not _is_here(host):
        raise ApiError("foreign_host", "this server answers to localhost and loopback addresses only")
    if b"origin" not in sent:
        return ""
    return _origin(sent, host, origins)


def _origin(sent: RequestHeaders, host: bytes | None, origins: frozenset[str]) -> str:
    if (times := sent.times(b"origin")) > 1:
        raise ApiError("malformed_request", f"there are {times} Origin headers; send one")
    given = sent[b"origin"].decode("latin-1")
    if host is not None and _netloc(given) == host.decode("latin-1"):
        return ""
    if given in origins:
        return given
    raise ApiError("foreign_origin", "only the page that this server serves may call it from a browser")


def is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight, which carries no key."""
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in sent_with(scope)


def preflight_response() -> Response:
    """Return the reply to a CORS preflight of an allowed origin: no cookies, a key in its header."""
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": "authorization, content-type, idempotency-key, x-deadline-ms",
            "access-control-max-age": "600",
        },
    )


@lru_cache(maxsize=64)
def _is_here(host: bytes) -> bool:
    return is_loopback(_hostname(host.decode("latin-1")))


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
