"""A bare Starlette application: `python -m windlass.operate.bench.gateway_bare`.

It answers POST /v1/chat/completions in OpenAI's shapes out of its own memory: it reads the JSON of the body
and nothing else happens; no key, no check, no tokenizer, no engine. uvicorn runs it with the loop and the
parser that our gateway has, so it is what the framework alone can do. The seed of a request is the pace of
a stream, as in gateway_mock.py; 0 sends frame after frame. It is also the API that LiteLLM's proxy stands
in front of.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from windlass.spec.door import DoorParser, emit, run_door

WORD = " word"
OPENING = {"role": "assistant", "content": ""}
NO_TOKENS = 16
"""Tokens of an answer to a request that does not say."""


def main(argv: list[str]) -> int:
    """Answer until ended."""
    DoorParser(prog="windlass.operate.bench.gateway_bare", description="Be a bare application.").parse_args(
        argv
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    emit({"listening": {"port": listener.getsockname()[1]}})
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", log_config=None, access_log=False, lifespan="off"
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


async def answer(request: Request) -> Response:
    """Answer whole, or as a stream."""
    asked = await request.json()
    tokens = int(asked.get("max_tokens") or NO_TOKENS)
    if not asked.get("stream"):
        return Response(whole(tokens), media_type="application/json")
    return StreamingResponse(frames(tokens, int(asked.get("seed") or 0)), media_type="text/event-stream")


def whole(tokens: int) -> bytes:
    """Return an answer as one object."""
    message = {"role": "assistant", "content": WORD * tokens, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 32, "completion_tokens": tokens, "total_tokens": 32 + tokens}
    return _json(_reply("chat.completion", choice) | {"usage": usage})


async def frames(tokens: int, pace: int) -> AsyncIterator[bytes]:
    """Yield an answer, one frame a token."""
    yield _frame(OPENING)
    word = _frame({"content": WORD})
    for _ in range(tokens):
        if pace:
            await asyncio.sleep(1 / pace)
        yield word
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


if __name__ == "__main__":
    run_door(main)
