"""What a gateway does with its parts of budgets when its database is slow to lend, or away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from windlass.serve.gateway.limits.limit_errors import short
from windlass.serve.gateway.limits.quota_client import QuotaClient, QuotaShare, Short
from windlass.serve.records.bucket import Rule
from windlass.serve.records.quotas import ALL, QUOTAS, Name
from windlass.spec.errors import StoreFailed
from windlass.store.database import grow
from windlass.store.on_sqlite import SqliteDatabase
from windlass.store.sql import Transaction

REQUEST = QuotaShare(Name(ALL, "requests"), Rule("flow", 5, 0.001), 1)


class Moody(SqliteDatabase):
    """A database that may be away."""

    is_away = False

    @contextmanager
    def transaction(self, *, light: bool = False, alone: str = "") -> Iterator[Transaction]:
        if self.is_away:
            raise StoreFailed("nobody answers")
        with super().transaction(light=light, alone=alone) as transaction:
            yield transaction


@pytest.fixture
def database(tmp_path: Path) -> Moody:
    database = Moody(tmp_path / "service.db")
    grow(database, [QUOTAS])
    return database


def run(database: Moody, work: Callable[[QuotaClient], Awaitable[None]], holder: str = "a") -> None:
    async def both() -> None:
        treasury = QuotaClient(database, holder)
        beside = asyncio.create_task(treasury.run())
        try:
            await work(treasury)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    asyncio.run(both())


async def spend(treasury: QuotaClient, times: int) -> int:
    """Ask so often; return how often there was enough."""
    got = 0
    for _ in range(times):
        try:
            (taken,) = await treasury.take([REQUEST])
        except Short:
            continue
        taken.settle(1)
        got += 1
    return got


def test_a_treasury_that_ends_gives_back_what_it_did_not_spend(database: Moody) -> None:
    async def two(treasury: QuotaClient) -> None:
        assert await spend(treasury, 2) == 2

    async def rest(treasury: QuotaClient) -> None:
        assert await spend(treasury, 10) == 3

    run(database, two)
    run(database, rest, "b")


def test_several_that_wait_for_the_same_exchange_are_all_paid(database: Moody) -> None:
    async def work(treasury: QuotaClient) -> None:
        assert await asyncio.gather(*(spend(treasury, 1) for _ in range(5))) == [1] * 5

    run(database, work)


def test_a_database_that_is_away_is_told_of_and_used_again_when_it_is_back(database: Moody) -> None:
    async def work(treasury: QuotaClient) -> None:
        database.is_away = True
        with pytest.raises(Short) as refused:
            await treasury.take([REQUEST])
        assert short(refused.value).code == "state_unavailable"
        database.is_away = False
        assert await spend(treasury, 1) == 1

    run(database, work)


def test_all_parts_are_taken_or_none(database: Moody) -> None:
    dear = QuotaShare(Name("tenant:ada", "tokens_day"), Rule("day", 10), 11)

    async def work(treasury: QuotaClient) -> None:
        with pytest.raises(Short) as refused:
            await treasury.take([REQUEST, dear])
        assert refused.value.part is dear
        assert await spend(treasury, 10) == 5

    run(database, work)


def test_a_refusal_names_the_limit_that_takes_the_longest(database: Moody) -> None:
    parts = [
        QuotaShare(Name(ALL, "requests"), Rule("flow", 5, 1.0), 5),
        QuotaShare(Name("tenant:ada", "requests"), Rule("flow", 5, 0.01), 5),
        QuotaShare(Name("key:k", "concurrent"), Rule("permits", 1), 1),
    ]

    async def work(treasury: QuotaClient) -> None:
        for taken in await treasury.take(parts):
            if taken.part.rule.fills == "flow":
                taken.settle(5)
        with pytest.raises(Short) as refused:
            await treasury.take(parts)
        assert refused.value.part is parts[1]
        assert refused.value.free_in_s == pytest.approx(500, abs=10)

    run(database, work)
