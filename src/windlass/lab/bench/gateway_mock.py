"""An engine without a model: `python -m windlass.lab.bench.gateway_mock --socket PATH`.

It implements the whole wire protocol at almost no cost, so that a benchmark measures the gateway. Every
answer repeats TOKEN. The seed of a request is the pace of its answer, in tokens per second: answers of one
pace advance together, with a token for each of them in a single write, as in an engine step; 0 returns the
whole answer in one message.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import cast

import uvloop

from windlass.spec.processes import MOCK_ENGINE
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.wire import (
    LENGTH,
    Cancel,
    Embed,
    EmbeddingVectors,
    Generate,
    Message,
    MessageBatch,
    Ping,
    Pong,
    Ready,
    ToEngine,
    Tokens,
    frame,
    to_engine,
)

CONTEXT = 2048
WIDTH = 64
TOKEN = 300
"""Any token with plain text; gateway_model.py checks that."""


def main(argv: list[str]) -> int:
    """Serve until stopped."""
    args = _parse(argv)
    uvloop.run(_serve(args))
    return 0


async def _serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    hello = Ready(
        model=args.name,
        family="llama",
        parameters=1,
        context=CONTEXT,
        vocabulary=args.vocabulary,
        width=WIDTH,
        slots=args.slots,
        process=os.getpid(),
    )
    server = await loop.create_unix_server(lambda: Conversation(hello), str(args.socket))
    emit({"listening": {"socket": str(args.socket)}})
    await server.serve_forever()


class Conversation(asyncio.Protocol):
    """One gateway's connection."""

    def __init__(self, hello: Ready) -> None:
        self._hello = hello
        self._buffer = bytearray()
        self._left: dict[int, dict[str, int]] = {}
        """For each pace, the tokens still to send of each answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is one by duck typing
        self._send(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) >= start + LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer, start)
            end = start + LENGTH.size + size
            if len(self._buffer) < end:
                break
            self._handle(to_engine.decode(self._buffer[start + LENGTH.size : end]))
            start = end
        del self._buffer[:start]

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Generate(seed=0):
                self._send(Tokens(message.id, [TOKEN] * message.max_tokens, finish="length"))
            case Generate():
                self._begin(message.seed, message)
            case Embed():
                self._send(EmbeddingVectors(message.id, [[WIDTH**-0.5] * WIDTH for _ in message.inputs]))
            case Cancel():
                for answers in self._left.values():
                    answers.pop(message.id, None)
            case Ping():
                self._send(Pong(message.number, steps=0, running=0, waiting=0))

    def _begin(self, pace: int, message: Generate) -> None:
        answers = self._left.setdefault(pace, {})
        if not answers:
            asyncio.get_running_loop().call_later(1 / pace, self._step, pace)
        answers[message.id] = message.max_tokens

    def _step(self, pace: int) -> None:
        """Send the next token of every answer of one pace."""
        answers = self._left.get(pace, {})
        ended = [id_ for id_, left in answers.items() if left == 1]
        going = {id_: [TOKEN] for id_, left in answers.items() if left > 1}
        self._send(MessageBatch(going, [Tokens(id_, [TOKEN], finish="length") for id_ in ended]))
        answers.update((id_, answers[id_] - 1) for id_ in going)
        for id_ in ended:
            del answers[id_]
        if answers:
            asyncio.get_running_loop().call_later(1 / pace, self._step, pace)

    def _send(self, message: Message) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame(message))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=MOCK_ENGINE, description="A mock engine for benchmarks.")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--vocabulary", type=int, required=True, help="vocabulary size")
    parser.add_argument("--slots", type=int, default=4096, help="max concurrent answers")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
