"""Answers that are sent while they are made, and work that stops when its client leaves.

Streams are server-sent events: `data:` frames, a comment now and then while nothing happens (so that
proxies keep the line open), and [DONE]. An error after the first byte is an event of its own, the last.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass.serve.gateway.errors import ApiError, envelope

KEEP_ALIVE = b": waiting\n\n"
KEEP_ALIVE_S = 10.0
STALLED_S = 60.0
DONE = b"data: [DONE]\n\n"
CLIENT_LEFT = 499
"""The status under which an unfinished request is counted; nobody receives it."""

T = TypeVar("T")
log = logging.getLogger(__name__)


def event(data: BaseModel) -> bytes:
    """Return one `data:` frame; fields that were not set are left out."""
    return b"data: " + data.model_dump_json(exclude_unset=True).encode("utf-8") + b"\n\n"


def error_event(error: ApiError, request_id: str) -> bytes:
    """Return the frame that ends a stream which failed."""
    body = json.dumps(envelope(error, request_id), ensure_ascii=False)
    return f"event: error\ndata: {body}\n\n".encode()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Run the work; give it up, at once, when the client leaves, and return None."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


class EventStream(Response):
    """A response whose frames are made while it is sent.

    A client that leaves ends it at once, one that stops reading after STALLED_S; `close` then gives the
    engine's work up, even if the source was never started.
    """

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes, None], request_id: str, close: Callable[[], None]
    ) -> None:
        self._source = source
        self._close = close
        self._request_id = request_id
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, left}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            log.warning("%s: the client stopped reading", self._request_id)
        finally:
            for each in (sending, left):
                each.cancel()
            self._close()
            await asyncio.gather(sending, left, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._source) as source:
            try:
                async for part in source:
                    async with asyncio.timeout(STALLED_S):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
            except ApiError as error:
                part = error_event(error, self._request_id)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
