"""A client of one engine over its wire: one request at a time, with a time limit."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec

from windlass.spec.protocol.wire import (
    Alternative,
    Embed,
    EmbeddingVectors,
    Failed,
    FromEngine,
    Generate,
    MessageBatch,
    Ping,
    Pong,
    PromptScores,
    Ready,
    Tokens,
    frame,
    from_engine,
    separated,
    take_frames,
)

CONNECT_S = 5.0
READ_BYTES = 1 << 16


class NoAnswer(Exception):
    """The engine is gone, sent an invalid message, or did not answer in time."""


@dataclass
class EngineAnswer:
    """A complete answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[list[Alternative]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens but the first."""
    vectors: list[list[float]] = field(default_factory=list)
    failed: str = ""
    """Code and message of a failure."""
    first_token_s: float = 0.0
    took_s: float = 0.0

    @property
    def per_token_s(self) -> float:
        """Mean time from one token to the next; 0 for fewer than two."""
        more = len(self.tokens) - 1
        return (self.took_s - self.first_token_s) / more if more > 0 else 0.0


class EngineClient:
    """One connection to one engine. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._buffer = bytearray()
        self._numbers = itertools.count()
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream.settimeout(CONNECT_S)
        try:
            self._stream.connect(str(path))
            self.ready = self._first(time.monotonic() + CONNECT_S)
        except (OSError, NoAnswer) as error:
            self._stream.close()
            raise NoAnswer(f"cannot be reached: {error}") from None

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def load(self, within_s: float) -> float:
        """Return the requests of the engine, running and waiting, as a share of its slots."""
        ping = Ping(next(self._numbers))
        self._send(ping)
        for message in self._messages(time.monotonic() + within_s):
            if isinstance(message, Pong) and message.number == ping.number:
                return (message.running + message.waiting) / max(1, self.ready.slots)
        raise NoAnswer("it closed the connection")

    def ask(self, request: Generate | Embed, within_s: float) -> EngineAnswer:
        """Send a request, whose id is chosen here; return the answer."""
        request = msgspec.structs.replace(request, id=f"own-{next(self._numbers)}")
        began = time.monotonic()
        self._send(request)
        answer = EngineAnswer()
        for message in self._messages(began + within_s):
            if getattr(message, "id", None) == request.id and _take(answer, message, began):
                return answer
        raise NoAnswer("it closed the connection")

    def _first(self, until: float) -> Ready:
        for message in self._messages(until):
            if isinstance(message, Ready):
                return message
        raise NoAnswer("it closed the connection")

    def _send(self, message: Generate | Embed | Ping) -> None:
        try:
            self._stream.sendall(frame(message))
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None

    def _messages(self, until: float) -> Iterator[FromEngine]:
        while True:
            for body in take_frames(self._buffer):
                message = from_engine.decode(body)
                yield from separated(message) if isinstance(message, MessageBatch) else (message,)
            try:
                self._stream.settimeout(max(0.001, until - time.monotonic()))
                data = self._stream.recv(READ_BYTES)
            except TimeoutError:
                raise NoAnswer("it did not answer in time") from None
            except OSError as error:
                raise NoAnswer(f"the connection broke: {error}") from None
            if not data:
                return
            self._buffer += data


def _take(answer: EngineAnswer, message: FromEngine, began: float) -> bool:
    """Add a message to an answer; return whether it was the last."""
    answer.took_s = time.monotonic() - began
    match message:
        case Tokens():
            answer.first_token_s = answer.first_token_s or answer.took_s
            answer.tokens += message.tokens
            answer.logprobs += message.logprobs
            answer.alternatives += message.alternatives
            return message.finish is not None
        case PromptScores():
            answer.scores = message.logprobs
        case EmbeddingVectors():
            answer.vectors = message.vectors
            return True
        case Failed():
            answer.failed = f"{message.code}: {message.message}"
            return True
    return False
