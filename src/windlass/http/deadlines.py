"""Until when an answer is worth having: X-Deadline-Ms of the request, or [serve] deadline, whichever is less.

Work that passes its deadline is given up in the engine. A whole answer becomes 408; a stream ends with an
error event after what it has shown. Admission hears of the deadline first, and may refuse at once.
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
    """How many seconds an answer may take, and when they are over by the clock of the event loop."""

    seconds: float
    at: float


def deadline_of(request: Request, max_s: float | None) -> Deadline | None:
    """Return until when a request is to be answered, or None when nobody set a bound."""
    seconds = _seconds_asked(request, max_s)
    if seconds is None:
        return None
    return Deadline(seconds, asyncio.get_running_loop().time() + seconds)


async def within(deadline: Deadline | None, work: Awaitable[T]) -> T:
    """Do the work, or give it up when its time is over."""
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
    """Return the refusal of an answer that came too late."""
    return ApiError("deadline_exceeded", f"the answer was not finished within {deadline.seconds:g} s")


def _seconds_asked(request: Request, max_s: float | None) -> float | None:
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
    asked_s = int(given) / 1000
    return asked_s if max_s is None else min(asked_s, max_s)
