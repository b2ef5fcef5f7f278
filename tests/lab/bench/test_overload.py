"""The bench of overload: its clients against a scripted server, and what it makes of what they saw."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from windlass.lab.bench.overload import MemorySample, figures, growth, quantile, requests
from windlass.lab.bench.overload_client import ClientResult, OverloadClients

STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"c\r\ndata: {}\n\n\r\n",
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
)
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\nretry-after: 1\r\n\r\n{}"
QUESTION = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
Answer = Callable[[asyncio.StreamWriter, int], Coroutine[Any, Any, None]]


async def crowd_at(
    answer: Answer, work: Callable[[OverloadClients], Coroutine[Any, Any, list[ClientResult]]]
) -> list[ClientResult]:
    """Serve on a port of loopback while a crowd works."""
    number = itertools.count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer, next(number))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    crowd = OverloadClients(f"http://127.0.0.1:{port}", itertools.repeat(QUESTION))
    seen = await work(crowd)
    crowd.close()
    server.close()
    return seen


async def streams_and_refuses(writer: asyncio.StreamWriter, number: int) -> None:
    if number % 2:
        writer.write(REFUSAL)
        return
    for part in STREAM:
        writer.write(part)
        await writer.drain()


async def breaks_off(writer: asyncio.StreamWriter, number: int) -> None:
    writer.write(STREAM[0])
    await writer.drain()
    writer.transport.abort()


def test_a_crowd_sees_streams_and_refusals_and_uses_connections_again() -> None:
    async def work(crowd: OverloadClients) -> list[ClientResult]:
        for _ in range(10):
            crowd.ask()
            await crowd.quiet()
        assert crowd._count == 1
        return crowd.take()

    seen = asyncio.run(crowd_at(streams_and_refuses, work))
    assert [one.status for one in seen] == [200, 429] * 5
    assert all(0 < one.first_s <= one.whole_s for one in seen if one.status == 200)


def test_a_connection_that_breaks_is_seen_as_broken() -> None:
    async def work(crowd: OverloadClients) -> list[ClientResult]:
        crowd.ask()
        await crowd.quiet()
        return crowd.take()

    assert [one.status for one in asyncio.run(crowd_at(breaks_off, work))] == [0]


def test_arrivals_come_whether_or_not_others_have_ended() -> None:
    enough = asyncio.Event()

    async def never(writer: asyncio.StreamWriter, number: int) -> None:
        await enough.wait()
        await streams_and_refuses(writer, number)

    async def work(crowd: OverloadClients) -> list[ClientResult]:
        arriving = asyncio.create_task(crowd.arrive(200.0, 0.2, random.Random(1)))
        async with asyncio.timeout(60):
            while crowd.under_way <= 10:
                await asyncio.sleep(0.001)
        enough.set()
        return await arriving

    asyncio.run(crowd_at(never, work))


def test_figures_compare_with_the_peak_and_with_the_unloaded_service() -> None:
    unloaded = [ClientResult(0, 200, 0.1, 1.0)] * 3
    seen = (
        [ClientResult(0, 200, 0.2, 1.0)] * 10
        + [ClientResult(0, 429, 0.0, 0.002)] * 90
        + [ClientResult(0, 0, 0.0, 0.0)]
    )
    found = figures(unloaded, 2.0, seen, [MemorySample(0, 100), MemorySample(1, 101)], seconds=5.0)
    assert found["goodput_vs_peak"] == 1.0
    assert found["ttft_p99_vs_unloaded"] == pytest.approx(2.0)
    assert found["reject_p99_ms"] == pytest.approx(2.0)
    assert (found["refused"], found["failed"]) == (90, 1)


def test_growth_compares_the_ends_and_not_a_spike_between() -> None:
    assert growth(
        [MemorySample(n, size) for n, size in enumerate([100, 100, 900, 900, 900, 900, 110, 110])]
    ) == pytest.approx(0.1)


def test_a_quantile_of_nothing_is_nothing() -> None:
    assert quantile([], 0.99) == 0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_prompts_differ_from_the_first_token_on() -> None:
    asked = list(itertools.islice(requests("wlk_key"), 50))
    assert len(set(asked)) == 50
    assert b"authorization: Bearer wlk_key" in asked[0]
