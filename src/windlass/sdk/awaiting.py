"""Runs calls in an event loop, over httpx. The same as blocking.py, but for `await`: see there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
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


class AsyncReply:
    """The open reply that a call is reading; a call has one at a time."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None

    async def open(self, effect: Open) -> ReplyStarted | Broken:
        await self.close()
        try:
            request = self._http.build_request(effect.request.method, effect.url, **request_of(effect))
            self._response = await self._http.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return broken_by(error)
        self._parts = self._response.aiter_bytes()
        return head_of(self._response)

    async def read(self, within_s: float | None) -> bytes | Broken:
        assert self._parts is not None
        try:
            async with asyncio.timeout(within_s):
                return await anext(self._parts, b"")
        except TimeoutError:
            await self.close()
            return Broken("did not answer in time", sent=True, late=True)
        except httpx.HTTPError as error:
            await self.close()
            return broken_by(error)

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()
        self._response = None


class Awaiting:
    """The asynchronous driver: performs the effects of calls."""

    def __init__(
        self,
        *,
        http: httpx.AsyncClient | None = None,
        clock: Clock = CLOCK,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Bits | None = None,
        elsewhere: bool = False,
    ) -> None:
        transport = httpx.AsyncHTTPTransport(socket_options=socket_options() if elsewhere else None)
        # Every request brings its own timeout.
        self._http = http or httpx.AsyncClient(timeout=None, transport=transport)  # noqa: S113
        self._clock = clock
        self._sleep = sleep
        self._draw = draw or bits()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        """Run a call to its end."""
        ended: list[T] = []
        async for _ in self.flow(call, ended):
            pass
        return ended[0]

    async def flow(self, call: Call[T], ended: list[T]) -> AsyncGenerator[Any, None]:
        """Run a call, and yield its pieces; its result is put into `ended`."""
        line, outcome = AsyncReply(self._http), None
        try:
            while True:
                try:
                    effect = call.send(outcome)
                except StopIteration as end:
                    ended.append(end.value)
                    return
                if isinstance(effect, Give):
                    yield effect.piece
                    outcome = None
                else:
                    outcome = await self._do(effect, line)
        finally:
            call.close()
            await line.close()

    async def _do(self, effect: Effect, line: AsyncReply) -> Any:
        match effect:
            case Open():
                return await line.open(effect)
            case ReadMore(within_s):
                return await line.read(within_s)
            case Close():
                return await line.close()
            case Look():
                return self._clock()
            case Pause(seconds):
                return await self._sleep(seconds)
            case Draw(wanted):
                return self._draw(wanted)


class AsyncStream(Generic[G, T]):
    """Pieces of an answer as they come, and the whole once they have.

        async for piece in client.stream("Once upon"): ...

    `await stream.close()`, or leaving an `async with` block, stops the server's work.
    """

    def __init__(self, pieces: AsyncGenerator[G, None], ended: list[T]) -> None:
        self._pieces = pieces
        self._ended = ended

    @property
    def result(self) -> T | None:
        """The whole answer; None until the last piece was read."""
        return self._ended[0] if self._ended else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> G:
        return await anext(self._pieces)

    async def finish(self) -> T:
        """Read what is left, and return the whole answer."""
        async for _ in self:
            pass
        assert self._ended, "the stream was closed before its end"
        return self._ended[0]

    async def close(self) -> None:
        await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AwaitingFace(Face[C]):
    """A client whose methods are awaited."""

    def __init__(self, calls: C, driver: Awaiting) -> None:
        self.calls = calls
        self._driver = driver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._driver.close()


class Awaits(Generic[C, P, T]):
    """Turns a call into an async method that returns the call's result."""

    def __init__(self, call: Callable[Concatenate[C, P], Call[T]]) -> None:
        async def method(face: AwaitingFace[C], *args: P.args, **kwargs: P.kwargs) -> T:
            return await face._driver.run(call(face.calls, *args, **kwargs))

        self._method = described(method, call, "X")

    @overload
    def __get__(
        self, face: None, owner: type[Any]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, face: AwaitingFace[C], owner: type[Any]) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(
        self, face: AwaitingFace[C] | None, owner: type[Any]
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        return self._method if face is None else MethodType(self._method, face)


class AsyncStreams(Generic[C, P, G, T]):
    """Turns a call that yields pieces into a method that returns an AsyncStream."""

    def __init__(self, call: Callable[Concatenate[C, P], Flow[G, T]]) -> None:
        def method(face: AwaitingFace[C], *args: P.args, **kwargs: P.kwargs) -> AsyncStream[G, T]:
            ended: list[T] = []
            flow = call(face.calls, *args, **kwargs)
            return AsyncStream(face._driver.flow(flow.call, ended), ended)

        self._method = described(method, call, "AsyncStream[X]")

    @overload
    def __get__(self, face: None, owner: type[Any]) -> Callable[Concatenate[Any, P], AsyncStream[G, T]]: ...

    @overload
    def __get__(self, face: AwaitingFace[C], owner: type[Any]) -> Callable[P, AsyncStream[G, T]]: ...

    def __get__(self, face: AwaitingFace[C] | None, owner: type[Any]) -> Callable[..., AsyncStream[G, T]]:
        return self._method if face is None else MethodType(self._method, face)
