"""Idempotency-Key: a repeated request gets the stored answer and is computed only once.

The same key and the same body within a day give the stored answer, on every gateway; while the first request
is in progress, 409; with another body, 422. Only finished answers are stored: a failed request may be
repeated. Streams are not stored, so a stream with a key is refused.
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
    """Return the identity of a request with an Idempotency-Key, or None without one."""
    key = only(request, HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise ApiError("invalid_header", "Idempotency-Key must be 1 to 255 visible ASCII characters")
    if stream:
        raise ApiError(
            "invalid_header", "Idempotency-Key is not for streams; remove it, or set stream: false"
        )
    content = request.url.path.encode() + b"\n" + _canonical.encode(request.state.body)
    return Repeatable(caller_of(request).tenant, key, content)


async def once(
    idempotent: Repeatable, database: Database | None, claimant: str, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Return the stored answer, or do the work and store its answer."""
    if database is None:
        raise ApiError("invalid_header", "Idempotency-Key needs a state database, and this server has none")
    found = await asyncio.to_thread(claim, database, idempotent, claimant, time.time())
    if found.state == "answered":
        return Response(found.body, media_type="application/json", headers={REPEATED: "true"})
    if found.state == "running":
        message = "a request with this Idempotency-Key is in progress"
        raise ApiError("idempotency_in_progress", message, retry_after_s=RETRY_S)
    if found.state == "different":
        raise ApiError("idempotency_mismatch", "this Idempotency-Key was used for another request")
    return await _claimed(idempotent, database, claimant, work)


async def _claimed(
    idempotent: Repeatable, database: Database, claimant: str, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Do the claimed work; release the claim if it fails or is cancelled."""
    body = None
    try:
        response = await work()
        body = bytes(response.body).decode() if response.status_code == 200 else None
    finally:
        await asyncio.shield(asyncio.to_thread(_settle, idempotent, database, claimant, body))
    return response


def _settle(idempotent: Repeatable, database: Database, claimant: str, body: str | None) -> None:
    """Store the answer or release the claim; if the database fails, the client still gets the answer."""
    try:
        if body is None:
            release(database, idempotent, claimant)
        else:
            keep(database, idempotent, claimant, body, time.time())
    except (StoreFailed, Damaged) as error:
        log.warning("%s: the answer is not stored: %s", claimant, error)
