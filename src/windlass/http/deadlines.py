"""The deadline of a request: its X-Deadline-Ms or [serve] deadline, whichever is earlier.

Work that passes its deadline is cancelled in the engine. A whole answer becomes 408; a stream ends with an
error event after the text sent so far. Admission control knows the deadline, and may refuse a request at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
from starlette.requests import Request

from windlass.http.errors import ApiError
from windlass.http.headers import only

HEADER = "x-deadline-ms"
MAX_MS = 86_400_000

T = TypeVar("T")


class Deadline(msgspec.Struct, frozen=True):
    """How many seconds an answer may take, and the resulting time on the event loop's clock."""

    seconds: float
    at: float


def deadline_of(request: Request, max_s: float | None) -> Deadline | None:
    """Return the deadline of a request, or None if there is none."""
    seconds = _requested_seconds(request, max_s)
    if seconds is None:
        return None
    return Deadline(seconds, asyncio.get_running_loop().time() + seconds)


async def within(deadline: Deadline | None, work: Awaitable[T]) -> T:
    """Do the work; cancel it and raise ApiError when its deadline passes."""
    if deadline is None:
        return await work
    limit = asyncio.timeout_at(deadline.at)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise exceeded(deadline) from None


def exceeded(deadline: Deadline) -> ApiError:
    """Return the error for an answer that was not finished in time."""
    return ApiError("deadline_exceeded", f"the answer was not finished within {deadline.seconds:g} s")


def _requested_seconds(request: Request, max_s: float | None) -> float | None:
    given = only(request, HEADER)
    if given is None:
        return max_s
    digits = given.isascii() and given.isdigit() and len(given) <= len(str(MAX_MS))
    if not digits or not 1 <= int(given) <= MAX_MS:
        raise ApiError(
            "invalid_header",
            f"X-Deadline-Ms must be a whole number of milliseconds, 1 to {MAX_MS}",
            allowed={"type": "integer", "minimum": 1, "maximum": MAX_MS},
        )
    requested_s = int(given) / 1000
    return requested_s if max_s is None else min(requested_s, max_s)
