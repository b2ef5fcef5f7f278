"""The web page at /: static files, listed and read once.

Only the files in FILES are served, so no path leads anywhere else. The content security policy lets the page
load nothing from other origins and run no script but its own files. Browsers that accept gzip get a third of
the bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOLDER = files("windlass.serve") / "page"
FILES = {
    each.name: TYPES[f".{each.name.rpartition('.')[2]}"]
    for each in sorted(FOLDER.iterdir(), key=lambda each: each.name)
    if f".{each.name.rpartition('.')[2]}" in TYPES
}
"""The media type of every file of the page."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
PACKS = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.I)
"""An Accept-Encoding that takes gzip."""
KEYS_OFF, KEYS_ON = (b'name="windlass-keys" content="%s"' % word for word in (b"off", b"on"))


@dataclass(frozen=True)
class Page:
    """Bytes to serve, with their ETag."""

    body: bytes
    media_type: str

    vary: str = "Accept-Encoding"

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.body, mtime=0)

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def page_response(request: Request, name: str) -> Response | None:
    """Return a file of the page, 304 if the browser has it cached, or None if there is no such file."""
    if name not in FILES:
        return None
    return send(request, _load(name))


def front_response(request: Request, *, keys: bool) -> Response:
    """Return the page itself, which contains whether this service needs keys."""
    return send(request, _front(keys))


def send(request: Request, page: Page) -> Response:
    """Send a page, with gzip if accepted, or 304 if the browser has it cached."""
    headers = HEADERS | {"etag": page.tag, "vary": page.vary}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if page.tag in known:
        return Response(status_code=304, headers=headers)
    if PACKS.search(request.headers.get("accept-encoding", "")):
        headers |= {"content-encoding": "gzip", "etag": f"W/{page.tag}"}  # the same, but not byte for byte
        return Response(page.packed, media_type=page.media_type, headers=headers)
    return Response(page.body, media_type=page.media_type, headers=headers)


@cache
def _load(name: str) -> Page:
    return Page((FOLDER / name).read_bytes(), FILES[name])


@cache
def _front(keys: bool) -> Page:
    page = _load("index.html")
    return Page(page.body.replace(KEYS_OFF, KEYS_ON), page.media_type) if keys else page
