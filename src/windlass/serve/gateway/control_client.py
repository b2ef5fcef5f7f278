"""Client of the control process, which knows runs, registered models and plans (docs/formats/control.md).

The gateway has authenticated the caller; it authenticates itself with its own key and names the caller in a
header. HTTP on a Unix socket, one connection for each request: closing it cancels the work there.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import httptools

from windlass.http.errors import ApiError

ANSWER_S = 45.0
"""Timeout for the head of an answer, and for the whole; a plan, the slowest, takes at most 30 s."""
SILENT_S = 30.0
"""Timeout without a byte of a stream; the process sends something every 10 s."""
RETRY_S = 2.0
READ_BYTES = 1 << 16


class Upstream:
    """The control process at a socket."""

    def __init__(self, socket: Path, key: str) -> None:
        self._socket, self._key = socket, key

    @classmethod
    def at(cls, socket: Path) -> Upstream:
        """Return the client for a socket; the gateways' key is in the file beside it (.key)."""
        return cls(socket, socket.with_suffix(".key").read_text())

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> ControlReply:
        """Forward a request and wait for the head of the reply; the caller of this must close the reply.

        Headers and path are sent as they are: the caller must check what comes from a client.
        """
        own = {"host": "localhost", "connection": "close", "authorization": f"Bearer {self._key}"}
        sent = own | {"content-length": str(len(body))} | dict(headers)
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._send(head.encode("ascii") + body)
        except TimeoutError:
            raise unavailable(f"did not answer within {ANSWER_S:.0f} s") from None
        except OSError:
            raise unavailable("is not running") from None

    async def _send(self, request: bytes) -> ControlReply:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        answer = ControlReply(reader, writer)
        try:
            writer.write(request)
            await answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer


class ControlReply:
    """The reply of the control process: status and content type at once, the body as it arrives."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.kind = ""
        self._reader, self._writer = reader, writer
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_begun = self._has_ended = False

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    async def begin(self) -> None:
        """Read until the head has arrived."""
        while not self._has_begun:
            await self._read()

    async def whole(self) -> bytes:
        """Return the whole body."""
        try:
            async with asyncio.timeout(ANSWER_S):
                while not self._has_ended:
                    await self._read()
        except TimeoutError:
            raise unavailable(f"did not finish within {ANSWER_S:.0f} s") from None
        return b"".join(self._pieces)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives."""
        while True:
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield b"".join(pieces)
            if self._has_ended:
                return
            try:
                async with asyncio.timeout(SILENT_S):
                    await self._read()
            except TimeoutError:
                raise unavailable(f"sent nothing for {SILENT_S:.0f} s") from None

    def close(self) -> None:
        self._writer.close()

    async def _read(self) -> None:
        try:
            data = await self._reader.read(READ_BYTES)
            if data:
                self._parser.feed_data(data)
                return
        except TimeoutError:
            raise
        except (OSError, httptools.HttpParserError):
            pass
        raise unavailable("closed the connection in the middle of its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.kind = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_begun = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._has_ended = True


def unavailable(what: str) -> ApiError:
    """Return the error for a control process that cannot be reached."""
    return ApiError("control_unavailable", f"the control process {what}", retry_after_s=RETRY_S)
