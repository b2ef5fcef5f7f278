"""The page at /: plain files, read once, named one by one.

Only the files in FILES exist, so no path leads anywhere else. The policy lets the page load nothing from
other places and run no script but its own files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "key.js": "text/javascript; charset=utf-8",
    "stream.js": "text/javascript; charset=utf-8",
    "words.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
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


@dataclass(frozen=True)
class Page:
    """Bytes to serve, with the tag by which a browser knows that it has them already."""

    body: bytes
    media_type: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def page_response(request: Request, name: str) -> Response | None:
    """Return a file of the page, 304 when the browser has it, or None when there is no such file."""
    if name not in FILES:
        return None
    return send(request, _load(name))


def send(request: Request, page: Page) -> Response:
    """Send a page, or 304 when the browser has it."""
    headers = HEADERS | {"etag": page.tag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if page.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(page.body, media_type=page.media_type, headers=headers)


@cache
def _load(name: str) -> Page:
    body = (files("windlass.serve") / "page" / name).read_bytes()
    return Page(body, FILES[name])
