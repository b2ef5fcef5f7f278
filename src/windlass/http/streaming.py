"""Streamed answers (server-sent events), and work that is cancelled when its client disconnects.

A stream has `data:` frames, a comment now and then while nothing happens (so that proxies keep the
connection open), and [DONE]. An error after the first byte is sent as the last event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass.http.deadlines import Deadline, within
from windlass.http.errors import ApiError, envelope

KEEP_ALIVE = b": waiting\n\n"
KEEP_ALIVE_S = 10.0
LOOK_AFTER_S = 0.05
DONE = b"data: [DONE]\n\n"
CLIENT_LEFT = 499
"""The status under which a request of a disconnected client is counted; it is never sent."""

T = TypeVar("T")


def event(data: BaseModel) -> bytes:
    """Return one `data:` frame; fields that were not set are left out."""
    return b"data: " + data.model_dump_json(exclude_unset=True).encode("utf-8") + b"\n\n"


def error_event(error: ApiError, request_id: str) -> bytes:
    """Return the last frame of a stream that failed."""
    body = json.dumps(envelope(error, request_id), ensure_ascii=False)
    return f"event: error\ndata: {body}\n\n".encode()


async def while_connected(request: Request, work: Awaitable[T]) -> T | None:
    """Do the work; cancel it and return None if the client disconnects."""
    with DisconnectWatch(request.receive) as watch:
        return await work
    assert watch.left
    return None


class DisconnectWatch:
    """Watches for a disconnect of the client, and cancels the block if it happens.

    Watching costs a task, and most answers are ready before it pays, so it begins after a while.
    """

    def __init__(self, receive: Receive) -> None:
        self.left = False
        self._receive = receive
        self._looking: asyncio.Task[None] | None = None

    def __enter__(self) -> DisconnectWatch:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(LOOK_AFTER_S, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Undo our own cancellation, as asyncio.timeout does; a cancellation by others stays."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if not self.left:
            return False
        return self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def _look(self) -> None:
        self._looking = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()


class EventStream(Response):
    """A response whose frames are made while it is sent.

    A disconnect ends it, and transport.py disconnects a client that stops reading; `close` then cancels the
    engine's work, even if the source was never started.
    """

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes, None], request_id: str, close: Callable[[], None]
    ) -> None:
        self._source = source
        self._close = close
        self._request_id = request_id
        self.deadline: Deadline | None = None
        """When to end, finished or not."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with DisconnectWatch(receive):
                await self._send_all(scope, send)
        finally:
            self._close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._source) as source:
            try:
                await within(self.deadline, _send_parts(source, send))
            except ApiError as error:
                scope["state"]["trace"].code = error.code
                part = error_event(error, self._request_id)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_parts(source: AsyncGenerator[bytes, None], send: Send) -> None:
    async for part in source:
        await send({"type": "http.response.body", "body": part, "more_body": True})
