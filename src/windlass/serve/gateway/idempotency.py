"""Idempotency-Key: a request that is sent again is answered as it was, and computed once.

The same key and the same body within a day give the stored answer, on whichever gateway; while the first
is under way, 409; with another body, 422. Only finished answers are kept: what failed may be tried again.
A stream is not kept, and so not asked for with a key.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError
from windlass.http.headers import only
from windlass.serve.gateway.caller import caller_of
from windlass.serve.records.idempotency_store import Repeatable, claim, keep, release
from windlass.spec.errors import Damaged, StoreFailed
from windlass.store.database import Database

HEADER = "idempotency-key"
REPEATED = "idempotent-replayed"
RETRY_S = 1.0

log = logging.getLogger(__name__)

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
    body = None
    try:
        response = await work()
        body = bytes(response.body).decode() if response.status_code == 200 else None
    finally:
        await asyncio.shield(asyncio.to_thread(_settle, asked, database, claimant, body))
    return response


def _settle(asked: Repeatable, database: Database, claimant: str, body: str | None) -> None:
    """Keep the answer or give the claim up; a state that is away does not spoil an answer that is there."""
    try:
        if body is None:
            release(database, asked, claimant)
        else:
            keep(database, asked, claimant, body, time.time())
    except (StoreFailed, Damaged) as error:
        log.warning("%s: the answer is not kept: %s", claimant, error)
