"""Runs calls in the caller's thread, over httpx.

Thin on purpose: it performs the effects that a call yields (`effects`) and decides nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from windlass.sdk.effects import (
    Broken,
    Call,
    Close,
    Draw,
    Effect,
    Flow,
    Give,
    Look,
    Open,
    Pause,
    ReadMore,
    ReplyStarted,
)
from windlass.sdk.faces import (
    CLOCK,
    Bits,
    Clock,
    Face,
    bits,
    broken_by,
    described,
    head_of,
    request_of,
    socket_options,
)

C = TypeVar("C")
G = TypeVar("G")
T = TypeVar("T")
P = ParamSpec("P")

SLACK = 0.9
"""A read may outlast the deadline by a ninth before it is worth a thread to end it in time."""


class BlockingReply:
    """The open reply that a call is reading; a call has one at a time."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: Iterator[bytes] = iter(())
        self._silence_s: float | None = None
        self._alarm: threading.Timer | None = None

    def open(self, effect: Open) -> ReplyStarted | Broken:
        self.close()
        self._silence_s = effect.silence_s
        try:
            request = self._http.build_request(effect.request.method, effect.url, **request_of(effect))
            self._response = self._http.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return broken_by(error)
        self._parts = self._response.iter_bytes()
        return head_of(self._response)

    def read(self, within_s: float | None) -> bytes | Broken:
        """Wait for bytes; a read cannot be given a new timeout, so an earlier deadline closes the socket."""
        if self._alarm is None and within_s is not None and within_s < SLACK * (self._silence_s or 1e9):
            self._alarm = threading.Timer(within_s, self._cut)
            self._alarm.daemon = True
            self._alarm.start()
        try:
            return next(self._parts, b"")
        except httpx.HTTPError as error:
            self.close()
            return broken_by(error)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._response is not None:
            self._response.close()
        self._response, self._alarm = None, None

    def _cut(self) -> None:
        response = self._response
        stream = None if response is None else response.extensions.get("network_stream")
        held = None if stream is None else stream.get_extra_info("socket")
        if held is not None:
            with suppress(OSError):  # it may be closed already
                held.shutdown(socket.SHUT_RDWR)


class Blocking:
    """The synchronous driver: performs the effects of calls, one after the other."""

    def __init__(
        self,
        *,
        http: httpx.Client | None = None,
        clock: Clock = CLOCK,
        sleep: Callable[[float], None] = time.sleep,
        draw: Bits | None = None,
        elsewhere: bool = False,
    ) -> None:
        transport = httpx.HTTPTransport(socket_options=socket_options() if elsewhere else None)
        # Every request brings its own timeout.
        self._http = http or httpx.Client(timeout=None, transport=transport)  # noqa: S113
        self._clock = clock
        self._sleep = sleep
        self._draw = draw or bits()

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Run a call to its end."""
        steps = self.flow(call)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

    def flow(self, call: Call[T]) -> Generator[Any, None, T]:
        """Run a call, and yield its pieces; closing the generator ends the call and its connection."""
        line, outcome = BlockingReply(self._http), None
        try:
            while True:
                try:
                    effect = call.send(outcome)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if isinstance(effect, Give):
                    yield effect.piece
                    outcome = None
                else:
                    outcome = self._do(effect, line)
        finally:
            call.close()
            line.close()

    def _do(self, effect: Effect, line: BlockingReply) -> Any:
        match effect:
            case Open():
                return line.open(effect)
            case ReadMore(within_s):
                return line.read(within_s)
            case Close():
                return line.close()
            case Look():
                return self._clock()
            case Pause(seconds):
                return self._sleep(seconds)
            case Draw(wanted):
                return self._draw(wanted)


class Stream(Generic[G, T]):
    """Pieces of an answer as they come, and the whole once they have.

        stream = client.stream("Once upon")
        for piece in stream: ...
        stream.result.completion_tokens

    `close()`, or leaving a `with` block, stops the server's work.
    """

    def __init__(self, pieces: Generator[G, None, T]) -> None:
        self._pieces = pieces
        self.result: T | None = None
        """The whole answer; None until the last piece was read."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> G:
        try:
            return next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.result = end.value
            raise

    def finish(self) -> T:
        """Read what is left, and return the whole answer."""
        for _ in self:
            pass
        assert self.result is not None, "the stream was closed before its end"
        return self.result

    def close(self) -> None:
        self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingFace(Face[C]):
    """A client whose methods wait."""

    def __init__(self, calls: C, driver: Blocking) -> None:
        self.calls = calls
        self._driver = driver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()


class Asks(Generic[C, P, T]):
    """Turns a call into a method that returns the call's result."""

    def __init__(self, call: Callable[Concatenate[C, P], Call[T]]) -> None:
        def method(face: BlockingFace[C], *args: P.args, **kwargs: P.kwargs) -> T:
            return face._driver.run(call(face.calls, *args, **kwargs))

        self._method = described(method, call, "X")

    @overload
    def __get__(self, face: None, owner: type[Any]) -> Callable[Concatenate[Any, P], T]: ...

    @overload
    def __get__(self, face: BlockingFace[C], owner: type[Any]) -> Callable[P, T]: ...

    def __get__(self, face: BlockingFace[C] | None, owner: type[Any]) -> Callable[..., T]:
        return self._method if face is None else MethodType(self._method, face)


class Streams(Generic[C, P, G, T]):
    """Turns a call that yields pieces into a method that returns a Stream."""

    def __init__(self, call: Callable[Concatenate[C, P], Flow[G, T]]) -> None:
        def method(face: BlockingFace[C], *args: P.args, **kwargs: P.kwargs) -> Stream[G, T]:
            return Stream(face._driver.flow(call(face.calls, *args, **kwargs).call))

        self._method = described(method, call, "Stream[X]")

    @overload
    def __get__(self, face: None, owner: type[Any]) -> Callable[Concatenate[Any, P], Stream[G, T]]: ...

    @overload
    def __get__(self, face: BlockingFace[C], owner: type[Any]) -> Callable[P, Stream[G, T]]: ...

    def __get__(self, face: BlockingFace[C] | None, owner: type[Any]) -> Callable[..., Stream[G, T]]:
        return self._method if face is None else MethodType(self._method, face)
