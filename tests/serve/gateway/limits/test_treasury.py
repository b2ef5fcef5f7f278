"""What a gateway does with its leases when its database is slow or unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from windlass.serve.gateway.limits.limit_errors import quota_exceeded
from windlass.serve.gateway.limits.quota_client import QuotaClient, QuotaExceeded, QuotaShare
from windlass.serve.records.bucket import Rule
from windlass.serve.records.quotas import ALL, QUOTAS, Name
from windlass.spec.errors import StoreFailed
from windlass.store.database import grow
from windlass.store.on_sqlite import SqliteDatabase
from windlass.store.sql import Transaction

REQUEST = QuotaShare(Name(ALL, "requests"), Rule("flow", 5, 0.001), 1)


class FlakyDatabase(SqliteDatabase):
    """A database that may be unreachable."""

    is_offline = False

    @contextmanager
    def transaction(self, *, light: bool = False, alone: str = "") -> Iterator[Transaction]:
        if self.is_offline:
            raise StoreFailed("nobody answers")
        with super().transaction(light=light, alone=alone) as transaction:
            yield transaction


@pytest.fixture
def database(tmp_path: Path) -> FlakyDatabase:
    database = FlakyDatabase(tmp_path / "service.db")
    grow(database, [QUOTAS])
    return database


def run(database: FlakyDatabase, work: Callable[[QuotaClient], Awaitable[None]], holder: str = "a") -> None:
    async def both() -> None:
        client = QuotaClient(database, holder)
        beside = asyncio.create_task(client.run())
        try:
            await work(client)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    asyncio.run(both())


async def spend(client: QuotaClient, times: int) -> int:
    """Take a request this many times; return how often the quota sufficed."""
    got = 0
    for _ in range(times):
        try:
            (taken,) = await client.take([REQUEST])
        except QuotaExceeded:
            continue
        taken.settle(1)
        got += 1
    return got


def test_a_treasury_that_ends_gives_back_what_it_did_not_spend(database: FlakyDatabase) -> None:
    async def two(client: QuotaClient) -> None:
        assert await spend(client, 2) == 2

    async def rest(client: QuotaClient) -> None:
        assert await spend(client, 10) == 3

    run(database, two)
    run(database, rest, "b")


def test_several_that_wait_for_the_same_exchange_are_all_paid(database: FlakyDatabase) -> None:
    async def work(client: QuotaClient) -> None:
        assert await asyncio.gather(*(spend(client, 1) for _ in range(5))) == [1] * 5

    run(database, work)


def test_a_database_that_is_away_is_reported_of_and_used_again_when_it_is_back(
    database: FlakyDatabase,
) -> None:
    async def work(client: QuotaClient) -> None:
        database.is_offline = True
        with pytest.raises(QuotaExceeded) as refused:
            await client.take([REQUEST])
        assert quota_exceeded(refused.value).code == "state_unavailable"
        database.is_offline = False
        assert await spend(client, 1) == 1

    run(database, work)


def test_all_parts_are_taken_or_none(database: FlakyDatabase) -> None:
    dear = QuotaShare(Name("tenant:ada", "tokens_day"), Rule("day", 10), 11)

    async def work(client: QuotaClient) -> None:
        with pytest.raises(QuotaExceeded) as refused:
            await client.take([REQUEST, dear])
        assert refused.value.part is dear
        assert await spend(client, 10) == 5

    run(database, work)


def test_a_refusal_names_the_limit_that_takes_the_longest(database: FlakyDatabase) -> None:
    parts = [
        QuotaShare(Name(ALL, "requests"), Rule("flow", 5, 1.0), 5),
        QuotaShare(Name("tenant:ada", "requests"), Rule("flow", 5, 0.01), 5),
        QuotaShare(Name("key:k", "concurrent"), Rule("permits", 1), 1),
    ]

    async def work(client: QuotaClient) -> None:
        for taken in await client.take(parts):
            if taken.part.rule.fills == "flow":
                taken.settle(5)
        with pytest.raises(QuotaExceeded) as refused:
            await client.take(parts)
        assert refused.value.part is parts[1]
        assert refused.value.free_in_s == pytest.approx(500, abs=10)

    run(database, work)
