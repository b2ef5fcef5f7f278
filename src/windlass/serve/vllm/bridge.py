"""The wire in front of a vLLM server: frames in, one HTTP stream for each answer, frames out.

A request that is cancelled, or whose gateway goes, closes its stream, by which vLLM stops computing it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from windlass.serve.vllm.child import VllmProcess
from windlass.serve.vllm.translate import DONE, BadVllmReply, Hearing, body_of, error_text, refusal
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
    """One gateway, and what is under way for it."""

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
        self._callers: set[GatewayConnection] = set()
        self._answers = self._tokens = 0
        self._busy_s = 0.0

    async def listen(self, path: Path) -> asyncio.Server:
        """Open the socket, for this user only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._meet, str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot listen there: {error.strerror or error}") from None
        finally:
            os.umask(before)

    async def tell_load(self) -> None:
        """Say how busy the engine is, about once a second while it is."""
        was_busy = False
        while True:
            busy = self._running > 0
            if busy or was_busy:
                load = EngineLoad(self._running, 0, self._answers, self._tokens, self._busy_s)
                for caller in self._callers:
                    caller.send(load)
            was_busy = busy
            await asyncio.sleep(TICK_S)
            self._busy_s += TICK_S if busy else 0.0

    @property
    def _running(self) -> int:
        return sum(len(caller.tasks) for caller in self._callers)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = GatewayConnection(writer)
        self._callers.add(caller)
        caller.send(self._ready)
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > MAX_FRAME_BYTES:
                    break
                self._receive(caller, to_engine.decode(await reader.readexactly(size)))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            pass  # The connection is of no further use; its requests end with it, below.
        finally:
            self._callers.discard(caller)
            for task in caller.tasks.values():
                task.cancel()
            writer.close()

    def _receive(self, caller: GatewayConnection, message: ToEngine) -> None:
        match message:
            case Ping():
                caller.send(Pong(message.number, self._answers, self._running, 0))
            case Cancel():
                task = caller.tasks.get(message.id)
                if task is not None:
                    task.cancel()
                    caller.send(Tokens(message.id, finish="cancelled"))
            case Embed():
                reason = "vLLM is used here to write text; serve the model with our own engine for embeddings"
                caller.send(Failed(message.id, "bad_request", reason))
            case Generate():
                self._begin(caller, message)

    def _begin(self, caller: GatewayConnection, request: Generate) -> None:
        ready = self._ready
        wrong = refusal(request, ready.model, ready.adapters, ready.context)
        if request.id in caller.tasks:
            wrong = Failed(request.id, "duplicate_id", f"request '{request.id}' is under way already")
        if wrong is not None:
            caller.send(wrong)
            return
        if not request.max_tokens and not request.score_prompt:
            caller.send(Tokens(request.id, finish="length"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(caller, request))
        caller.tasks[request.id] = task
        task.add_done_callback(lambda _: caller.tasks.pop(request.id, None))

    async def _answer(self, caller: GatewayConnection, request: Generate) -> None:
        hearing = Hearing(request)
        try:
            await self._stream(caller, hearing)
            if not hearing.finished:
                caller.send(Failed(request.id, "gave_up", "vLLM ended the answer before its end"))
        except (httpx.HTTPError, BadVllmReply) as error:
            broken = isinstance(error, httpx.HTTPError)
            reason = "the connection to vLLM broke before the answer ended" if broken else str(error)
            caller.send(Failed(request.id, "gave_up" if broken else "engine_failed", reason))
        self._answers += 1

    async def _stream(self, caller: GatewayConnection, hearing: Hearing) -> None:
        body = body_of(hearing.request, self._ready.model)
        async with self._child.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                caller.send(await _refused(hearing.request.id, response))
                hearing.finished = True
                return
            async for line in response.aiter_lines():
                if not line.startswith(DATA):
                    continue
                data = line.removeprefix(DATA).strip()
                for message in hearing.hear(data):
                    self._tokens += len(message.tokens) if isinstance(message, Tokens) else 0
                    caller.send(message)
                if hearing.finished or data == DONE:
                    return


async def _refused(id_: str, response: httpx.Response) -> Failed:
    """Say an answer that is no stream: what was asked wrongly is told apart from what went wrong."""
    raw = await response.aread()
    try:
        text = error_text(msgspec.json.decode(raw))
    except msgspec.MsgspecError:
        text = f"vLLM answered with status {response.status_code}"
    return Failed(id_, "bad_request" if 400 <= response.status_code < 500 else "engine_failed", text)
