"""Joins the writes of one iteration of the event loop into one.

An answer is written in several parts (its head, its body, the end of a chunk), and every part that is sent
separately costs a system call and wakes the client.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Corked:
    """A transport that buffers writes until the iteration ends; everything else is passed to the real one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._kept: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._kept:
            self._loop.call_soon(self.flush)
        self._kept.append(data)

    def flush(self) -> None:
        """Send what is buffered; on a closed connection, drop it."""
        if self._kept:
            kept, self._kept = self._kept, []
            self._transport.write(b"".join(kept))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._kept))
