"""Clients of a service, synchronous and asynchronous. The calls are in `answers`.

with Client("http://127.0.0.1:8000") as client:                         # key=..., or $WINDLASS_KEY
    print(client.complete("Once upon a time", max_tokens=50).text)

async with AsyncClient(["https://a.example", "https://b.example"]) as client:
    async for piece in client.stream("Once upon a time", deadline=30):
        ...
"""

from __future__ import annotations

from windlass.sdk.answers import InferenceCalls
from windlass.sdk.awaiting import AsyncStreams, Awaiting, AwaitingFace, Awaits
from windlass.sdk.blocking import Asks, Blocking, BlockingFace, Streams
from windlass.sdk.faces import Where, exchange_of
from windlass.sdk.retries import Retries
from windlass.sdk.sites import Circuit

DEADLINE_S = 600.0
ABSENT = "is the server running?"


class Client(BlockingFace[InferenceCalls]):
    """A synchronous client of a service.

    `where` is an address, or several in the order of preference (or `ServerSite`s, with weights); `model`
    defaults to the first that is served, `key` to $WINDLASS_KEY. `deadline`, in seconds, covers everything
    that a call does: finding the model, every attempt, every wait; None means no deadline. A call may
    override it.
    """

    def __init__(
        self,
        where: Where,
        *,
        key: str | None = None,
        model: str | None = None,
        deadline: float | None = DEADLINE_S,
        retries: Retries | None = None,
        circuit: Circuit | None = None,
        driver: Blocking | None = None,
    ) -> None:
        exchange = exchange_of(where, key, retries=retries, circuit=circuit, absent=ABSENT)
        super().__init__(
            InferenceCalls(exchange, model=model, deadline=deadline),
            driver or Blocking(elsewhere=len(exchange.sites) > 1),
        )

    models = Asks(InferenceCalls.models)
    catalogue = Asks(InferenceCalls.catalogue)
    complete = Asks(InferenceCalls.complete)
    chat = Asks(InferenceCalls.chat)
    stream = Streams(InferenceCalls.stream)
    stream_chat = Streams(InferenceCalls.stream_chat)
    embed = Asks(InferenceCalls.embed)
    tokenize = Asks(InferenceCalls.tokenize)
    detokenize = Asks(InferenceCalls.detokenize)
    dry_run = Asks(InferenceCalls.dry_run)


class AsyncClient(AwaitingFace[InferenceCalls]):
    """The same as Client, for event loops: its methods are awaited, its streams read with `async for`."""

    def __init__(
        self,
        where: Where,
        *,
        key: str | None = None,
        model: str | None = None,
        deadline: float | None = DEADLINE_S,
        retries: Retries | None = None,
        circuit: Circuit | None = None,
        driver: Awaiting | None = None,
    ) -> None:
        exchange = exchange_of(where, key, retries=retries, circuit=circuit, absent=ABSENT)
        super().__init__(
            InferenceCalls(exchange, model=model, deadline=deadline),
            driver or Awaiting(elsewhere=len(exchange.sites) > 1),
        )

    models = Awaits(InferenceCalls.models)
    catalogue = Awaits(InferenceCalls.catalogue)
    complete = Awaits(InferenceCalls.complete)
    chat = Awaits(InferenceCalls.chat)
    stream = AsyncStreams(InferenceCalls.stream)
    stream_chat = AsyncStreams(InferenceCalls.stream_chat)
    embed = Awaits(InferenceCalls.embed)
    tokenize = Awaits(InferenceCalls.tokenize)
    detokenize = Awaits(InferenceCalls.detokenize)
    dry_run = Awaits(InferenceCalls.dry_run)
