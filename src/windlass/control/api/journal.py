"""A run's journal over HTTP: page by page, or as server-sent events while it grows."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from windlass.runs.run_status import is_running
from windlass.runs.tail import Tail
from windlass.runs.training import RunFolder
from windlass.spec.run import JOURNAL

T = TypeVar("T")

LOOK_EVERY_S = 0.2
KEEP_ALIVE_S = 10.0
LOOK_AT_STAGE_S = 1.0


def read_records(folder: RunFolder, after: int, limit: int) -> list[dict[str, Any]]:
    """Return up to `limit` records after the first `after`."""
    return [finite(record) for record in Tail(folder.path / JOURNAL, after=after).read()[:limit]]


class Rights(Protocol):
    """Runs work with the file access rights of the caller, in a thread."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


def follow(folder: RunFolder, after: int, rights: Rights) -> StreamingResponse:
    """Send every record after the first `after` as an event, until the run has ended."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(folder, after, rights), media_type="text/event-stream", headers=headers)


async def _events(folder: RunFolder, after: int, rights: Rights) -> AsyncGenerator[bytes, None]:
    """Yield events whose id is the number of records up to them; the last one is called "end".

    The state of the run is read before its records, so that none is missed.
    """
    tail, running, spoke, looked = Tail(folder.path / JOURNAL, after=after), True, time.monotonic(), -math.inf
    while running:
        now = time.monotonic()
        if now - looked >= LOOK_AT_STAGE_S:
            running, looked = await run_in_threadpool(rights, lambda: is_running(folder)), now
        records = await run_in_threadpool(rights, tail.read)
        for number, record in enumerate(records, start=tail.count - len(records) + 1):
            yield f"id: {number}\ndata: {json.dumps(finite(record), ensure_ascii=False)}\n\n".encode()
        if records:
            spoke = now
        elif now - spoke >= KEEP_ALIVE_S:
            spoke = now
            yield b": waiting\n\n"
        if running:
            await asyncio.sleep(LOOK_EVERY_S)
    yield b"event: end\ndata: {}\n\n"


def finite(value: Any) -> Any:
    """Replace NaN and infinity by null, which JSON has: a loss can become NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
