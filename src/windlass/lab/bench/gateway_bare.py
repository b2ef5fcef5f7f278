"""A bare Starlette application: `python -m windlass.lab.bench.gateway_bare [--socket PATH]`.

It answers POST /v1/chat/completions in OpenAI's format: it parses the JSON body, requests tokens from the
mock engine (gateway_mock.py) over the wire and sends as many words. It has no keys, checks, limits, tokenizer
or counters: it shows what the framework alone can do, with the same event loop and parser. Without --socket
it answers from memory; LiteLLM's proxy uses that as its backend.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from windlass.spec.processes import BARE_GATEWAY
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.wire import Generate, MessageBatch, Tokens, frame, from_engine, take_frames

WORD = " word"
OPENING = {"role": "assistant", "content": ""}
TOKENS = 16
"""Default number of tokens of an answer."""
PROMPT = [1] * 32


def main(argv: list[str]) -> int:
    """Serve until stopped."""
    args = _parse(argv)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    app.state.source = InstantTokens() if args.socket is None else MockEngineWire(args.socket)
    emit({"listening": {"port": listener.getsockname()[1]}})
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", log_config=None, access_log=False, lifespan="off"
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


async def answer(request: Request) -> Response:
    """Answer as one object, or as a stream."""
    body, source = await request.json(), request.app.state.source
    arriving = source.tokens(int(body.get("max_tokens") or TOKENS), int(body.get("seed") or 0))
    if body.get("stream"):
        return StreamingResponse(_frames(arriving), media_type="text/event-stream")
    return Response(whole(sum([count async for count in arriving])), media_type="application/json")


class BareTokenSource(Protocol):
    """A source of tokens: yields how many have arrived."""

    def tokens(self, wanted: int, pace: int) -> AsyncIterator[int]: ...


class InstantTokens:
    """No engine: all tokens at once, or one after the other at a given pace."""

    async def tokens(self, wanted: int, pace: int) -> AsyncIterator[int]:
        for _ in range(wanted):
            if pace:
                await asyncio.sleep(1 / pace)
            yield 1


class MockEngineWire(asyncio.Protocol):
    """The mock engine, over one connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ids = itertools.count()
        self._waiting: dict[str, asyncio.Queue[tuple[int, bool]]] = {}

    async def tokens(self, wanted: int, pace: int) -> AsyncIterator[int]:
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_unix_connection(lambda: self, str(self._path))
        id_, ended = str(next(self._ids)), False
        queue = self._waiting[id_] = asyncio.Queue()
        self._transport.write(frame(Generate(id_, PROMPT, wanted, seed=pace)))
        while not ended:
            count, ended = await queue.get()
            yield count
        del self._waiting[id_]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for body in take_frames(self._buffer):
            message = from_engine.decode(body)
            if isinstance(message, MessageBatch):
                for id_, tokens in message.tokens.items():
                    self._waiting[id_].put_nowait((len(tokens), False))
            for ended in message.others if isinstance(message, MessageBatch) else [message]:
                if isinstance(ended, Tokens):
                    self._waiting[ended.id].put_nowait((len(ended.tokens), ended.finish is not None))


def whole(tokens: int) -> bytes:
    """Return an answer as one object."""
    message = {"role": "assistant", "content": WORD * tokens, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 32, "completion_tokens": tokens, "total_tokens": 32 + tokens}
    return _json(_reply("chat.completion", choice) | {"usage": usage})


async def _frames(arriving: AsyncIterator[int]) -> AsyncIterator[bytes]:
    """Yield an answer, one frame per token."""
    yield _frame(OPENING)
    word = _frame({"content": WORD})
    async for count in arriving:
        yield word * count
    yield _frame({}, "length")
    yield b"data: [DONE]\n\n"


def _frame(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + _json(_reply("chat.completion.chunk", choice)) + b"\n\n"


def _reply(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    id_ = "chatcmpl-0123456789abcdef01234567"
    return {"id": id_, "object": kind, "created": 1_700_000_000, "model": "mock", "choices": [choice]}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=BARE_GATEWAY, description="A bare application for benchmarks.")
    parser.add_argument("--socket", type=Path, help="Unix socket of the mock engine")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
