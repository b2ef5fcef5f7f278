"""The wire in front of a vLLM server: frames in, one HTTP stream for each answer, frames out.

Cancelling a request, or losing its gateway, closes its stream, and vLLM stops computing it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from windlass.serve.vllm.child import VllmProcess
from windlass.serve.vllm.translate import DONE, AnswerStream, BadVllmReply, body_of, error_text, refusal
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    Cancel,
    Embed,
    EngineLoad,
    Failed,
    Generate,
    Message,
    Ping,
    Pong,
    Ready,
    ToEngine,
    Tokens,
    frame,
    to_engine,
)

TICK_S = 1.0
DATA = "data:"


@dataclass(eq=False)
class GatewayConnection:
    """One gateway and its running requests."""

    writer: asyncio.StreamWriter
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def send(self, message: Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(frame(message))


class Bridge:
    """Serves one vLLM server on one socket."""

    def __init__(self, child: VllmProcess, ready: Ready) -> None:
        self._child = child
        self._ready = ready
        self._gateways: set[GatewayConnection] = set()
        self._answers = self._tokens = 0
        self._busy_s = 0.0

    async def listen(self, path: Path) -> asyncio.Server:
        """Open the socket, for this user only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._serve_connection, str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot listen on this socket: {error.strerror or error}") from None
        finally:
            os.umask(before)

    async def send_load(self) -> None:
        """Send the load to all gateways, about once a second while requests run."""
        was_busy = False
        while True:
            busy = self._running > 0
            if busy or was_busy:
                load = EngineLoad(self._running, 0, self._answers, self._tokens, self._busy_s)
                for gateway in self._gateways:
                    gateway.send(load)
            was_busy = busy
            await asyncio.sleep(TICK_S)
            self._busy_s += TICK_S if busy else 0.0

    @property
    def _running(self) -> int:
        return sum(len(gateway.tasks) for gateway in self._gateways)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gateway = GatewayConnection(writer)
        self._gateways.add(gateway)
        gateway.send(self._ready)
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > MAX_FRAME_BYTES:
                    break
                self._receive(gateway, to_engine.decode(await reader.readexactly(size)))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            pass  # The connection is unusable; its requests are cancelled below.
        finally:
            self._gateways.discard(gateway)
            for task in gateway.tasks.values():
                task.cancel()
            writer.close()

    def _receive(self, gateway: GatewayConnection, message: ToEngine) -> None:
        match message:
            case Ping():
                gateway.send(Pong(message.number, self._answers, self._running, 0))
            case Cancel():
                task = gateway.tasks.get(message.id)
                if task is not None:
                    task.cancel()
                    gateway.send(Tokens(message.id, finish="cancelled"))
            case Embed():
                reason = (
                    "the vLLM engine generates text only; serve the model with our own engine for embeddings"
                )
                gateway.send(Failed(message.id, "bad_request", reason))
            case Generate():
                self._begin(gateway, message)

    def _begin(self, gateway: GatewayConnection, request: Generate) -> None:
        ready = self._ready
        wrong = refusal(request, ready.model, ready.adapters, ready.context)
        if request.id in gateway.tasks:
            wrong = Failed(request.id, "duplicate_id", f"request '{request.id}' is under way already")
        if wrong is not None:
            gateway.send(wrong)
            return
        if not request.max_tokens and not request.score_prompt:
            gateway.send(Tokens(request.id, finish="length"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(gateway, request))
        gateway.tasks[request.id] = task
        task.add_done_callback(lambda _: gateway.tasks.pop(request.id, None))

    async def _answer(self, gateway: GatewayConnection, request: Generate) -> None:
        stream = AnswerStream(request)
        try:
            await self._stream(gateway, stream)
            if not stream.finished:
                gateway.send(
                    Failed(request.id, "gave_up", "vLLM closed the stream before the end of the answer")
                )
        except (httpx.HTTPError, BadVllmReply) as error:
            broken = isinstance(error, httpx.HTTPError)
            reason = "the connection to vLLM broke before the answer ended" if broken else str(error)
            gateway.send(Failed(request.id, "gave_up" if broken else "engine_failed", reason))
        self._answers += 1

    async def _stream(self, gateway: GatewayConnection, stream: AnswerStream) -> None:
        body = body_of(stream.request, self._ready.model)
        async with self._child.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                gateway.send(await _refused(stream.request.id, response))
                stream.finished = True
                return
            async for line in response.aiter_lines():
                if not line.startswith(DATA):
                    continue
                data = line.removeprefix(DATA).strip()
                for message in stream.receive(data):
                    self._tokens += len(message.tokens) if isinstance(message, Tokens) else 0
                    gateway.send(message)
                if stream.finished or data == DONE:
                    return


async def _refused(id_: str, response: httpx.Response) -> Failed:
    """Translate an error response: status 4xx is a bad request, anything else a failed engine."""
    raw = await response.aread()
    try:
        text = error_text(msgspec.json.decode(raw))
    except msgspec.MsgspecError:
        text = f"vLLM answered with status {response.status_code}"
    return Failed(id_, "bad_request" if 400 <= response.status_code < 500 else "engine_failed", text)
