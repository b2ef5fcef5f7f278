"""Idempotency-Key: a request that is sent again is answered as it was, and computed once.

The same key and the same body within a day give the stored answer, on whichever gateway; while the first
is under way, 409; with another body, 422. Only finished answers are kept: what failed may be tried again.
A stream is not kept, and so not asked for with a key.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.errors import ApiError
from windlass.serve.gateway.headers import only
from windlass.serve.records.answers import Repeatable, claim, keep, release
from windlass.store.database import Database

HEADER = "idempotency-key"
REPEATED = "idempotent-replayed"
RETRY_S = 1.0

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_canonical = msgspec.json.Encoder(order="sorted")


def repeatable(request: Request, *, stream: bool) -> Repeatable | None:
    """Return what a request with a key is known by, or None when it has no key."""
    key = only(request, HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise ApiError("invalid_header", "Idempotency-Key must be 1 to 255 visible ASCII characters")
    if stream:
        raise ApiError("invalid_header", "Idempotency-Key is not for streams; leave it out, or stream: false")
    asked = request.url.path.encode() + b"\n" + _canonical.encode(request.state.body)
    return Repeatable(caller_of(request).tenant, key, asked)


async def once(
    asked: Repeatable, database: Database | None, claimant: str, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Answer from what is stored, or do the work and store it."""
    if database is None:
        raise ApiError("invalid_header", "Idempotency-Key needs a state database, and this server has none")
    found = await asyncio.to_thread(claim, database, asked, claimant, time.time())
    if found.state == "answered":
        return Response(found.body, media_type="application/json", headers={REPEATED: "true"})
    if found.state == "running":
        message = "a request with this Idempotency-Key is under way"
        raise ApiError("idempotency_in_progress", message, retry_after_s=RETRY_S)
    if found.state == "different":
        raise ApiError("idempotency_mismatch", "this Idempotency-Key was used for another request")
    return await _claimed(asked, database, claimant, work)


async def _claimed(
    asked: Repeatable, database: Database, claimant: str, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Do the work that was claimed; whatever ends it early gives the claim up."""
    try:
        response = await work()
    except BaseException:
        await asyncio.shield(asyncio.to_thread(release, database, asked, claimant))
        raise
    if response.status_code != 200:
        await asyncio.to_thread(release, database, asked, claimant)
        return response
    body = bytes(response.body).decode()
    await asyncio.to_thread(keep, database, asked, claimant, body, time.time())
    return response
