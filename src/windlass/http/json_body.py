"""Reads a JSON body within limits of size and time, and decodes it strictly.

Size, type and syntax are checked before any value, so that a bad request costs no more than reading it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from windlass.http.errors import ApiError, shown
from windlass.http.headers import sent_with

MAX_BODY_BYTES = 8 << 20
BODY_TIMEOUT_S = 30.0
WHOLE = "windlass.body"
"""Key of the ASGI scope that holds the body, if it arrived together with the head (transport.py)."""

_json = msgspec.json.Decoder()
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"
)


async def read_bytes(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read a body of type JSON, within limits of size and time."""
    _check_type(request, max_bytes)
    whole: bytes | None = request.scope.get(WHOLE)
    if whole is None:
        return await _wait_for(request, max_bytes)
    if len(whole) > max_bytes:
        raise _too_large(max_bytes)
    return whole


def parse(body: bytes) -> dict[str, Any]:
    """Decode JSON strictly: UTF-8, no NaN, no lone surrogates, one object, bounded depth."""
    try:
        body.decode("utf-8")
        value = _json.decode(body)
    except UnicodeDecodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ApiError("invalid_json", "the body is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ApiError("invalid_json", _syntax(body, str(error))) from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", f"the body must be a JSON object, not {shown(value)}")
    return value


def _check_type(request: Request, max_bytes: int) -> None:
    sent = sent_with(request.scope)
    kind = sent.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            "unsupported_media_type",
            f"Content-Type is {shown(kind)}; it must be application/json"
            if kind
            else "Content-Type is missing",
        )
    length = sent.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


async def _wait_for(request: Request, max_bytes: int) -> bytes:
    """Read a body that arrives in pieces."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_pieces(request, max_bytes)
    except TimeoutError:
        raise ApiError("body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None


async def _read_pieces(request: Request, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError("body_too_large", f"the body is larger than {max_bytes} bytes")


def _syntax(body: bytes, reason: str) -> str:
    surrogate = _LONE_SURROGATE.search(body)
    if surrogate is not None:
        return f"half of a surrogate pair at byte {surrogate.start()} of the body"
    if "truncated" in reason:
        return f"the body ends at byte {len(body)}, in the middle of the JSON"
    if "out of range" in reason:
        return "a number in the body is too large to be represented"
    place = re.search(r"\(byte (\d+)\)", reason)
    what = reason.partition(": ")[2].partition(" (byte")[0] or "something is wrong"
    return f"the body is not valid JSON at byte {place.group(1) if place else '?'}: {what}"
