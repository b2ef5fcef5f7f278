"""The parts of shared budgets that this gateway holds: taken at once, exchanged in a thread ahead of need.

take -> purses have it: no waiting, no I/O -> settle gives back what was not used
     -> they may get it: the next exchange is awaited, a few milliseconds
     -> they cannot:     Short, at once, with what is missing

An exchange is one transaction for all purses that need one. There is one at a time, so a database that is
slow or away holds up only those who wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from windlass.serve.gateway.limits.quota_lease import TERM_S, QuotaLease
from windlass.serve.records.bucket import LeaseRequest, Rule
from windlass.serve.records.quotas import Name, Received, UnsharedQuotas, trade
from windlass.spec.errors import WindlassError
from windlass.store.database import Database

SPACING_S = 0.01
"""Between two exchanges: what is asked for meanwhile goes together."""
LOOK_EVERY_S = 0.25
PATIENCE_S = 1.0
MAX_ORDERS = 500
"""In one transaction, so that other gateways get their turn."""

log = logging.getLogger(__name__)
Orders = dict[Name, tuple[Rule, LeaseRequest]]


class QuotaShare(msgspec.Struct, frozen=True):
    """What a request takes of one budget."""

    name: Name
    rule: Rule
    amount: float


class Short(Exception):
    """A budget that cannot give what a request takes."""

    def __init__(self, part: QuotaShare, used: float, free_in_s: float | None, *, away: bool = False) -> None:
        super().__init__(f"{part.name.scope} {part.name.kind}")
        self.part, self.used, self.free_in_s, self.away = part, used, free_in_s, away


@dataclass(slots=True)
class HeldQuota:
    """What one request holds of one budget."""

    part: QuotaShare
    purse: QuotaLease
    epoch: int
    is_open: bool = True

    def left(self, now: float) -> float:
        """Return what is left of the budget, as far as is known here."""
        return max(0.0, self.purse.left(now)) + self.purse.free

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Say it by the names of the IETF's draft; `reset` tells when the budget is full again."""
        most = self.part.rule.most
        reset_s = self.purse.free_in_s(most, now) or 0.0
        return [
            (b"ratelimit-limit", b"%d" % most),
            (b"ratelimit-remaining", b"%d" % self.left(now)),
            (b"ratelimit-reset", b"%d" % math.ceil(reset_s)),
        ]

    def settle(self, spent: float) -> None:
        if self.is_open:
            self.is_open = False
            self.purse.settle(self.part.amount, spent, self.epoch, time.monotonic())


class QuotaClient:
    """All purses of one gateway."""

    def __init__(self, database: Database | None, holder: str) -> None:
        lender = UnsharedQuotas().trade if database is None else partial(trade, database)
        self._lend = partial(lender, holder, term_s=TERM_S)
        self.purses: dict[Name, QuotaLease] = {}
        self._wake = asyncio.Event()
        self._exchanged: asyncio.Future[bool] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quotas")

    async def take(self, parts: Sequence[QuotaShare]) -> list[HeldQuota]:
        """Take all parts or none; raise Short for one that cannot be had."""
        now = time.monotonic()
        lacking = self._lacking(parts, now)
        if lacking:
            now = await self._wait_for(parts, lacking, now)
        taken = []
        for part in parts:
            purse = self._purse(part)
            purse.take(part.amount, now)
            if purse.is_low(now):
                self._wake.set()
            taken.append(HeldQuota(part, purse, purse.epoch))
        return taken

    async def run(self) -> None:
        """Renew, refill and give back for as long as the gateway lives; at the end give everything back."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._wake.wait()
                self._wake.clear()
                self._exchanged, awaited = None, self._exchanged
                brought = await self._exchange(time.monotonic())
                if awaited is not None and not awaited.done():
                    awaited.set_result(brought)
                await asyncio.sleep(SPACING_S)
        finally:
            await asyncio.shield(self._leave())

    def _lacking(self, parts: Sequence[QuotaShare], now: float) -> list[QuotaShare]:
        purse = self._purse
        return [part for part in parts if not purse(part).has(part.amount, now)]

    async def _wait_for(
        self, parts: Sequence[QuotaShare], lacking: Sequence[QuotaShare], now: float
    ) -> float:
        """Return once all parts are there, and when that was; or raise Short."""
        until = now + PATIENCE_S
        # Whoever comes while an exchange is awaited may take what it brought; another brings more.
        while lacking and now < until and await self._is_brought(lacking, now):
            now = time.monotonic()
            lacking = self._lacking(parts, now)
        if lacking:
            raise self._short(lacking, now)
        return now

    async def _is_brought(self, lacking: Sequence[QuotaShare], now: float) -> bool:
        """Wait for the next exchange if it may bring all that lacks; otherwise have one made soon."""
        purses = [(self._purse(part), part.amount) for part in lacking]
        for purse, amount in purses:
            purse.miss(amount, now)
        if not all(purse.hopes(amount, now) for purse, amount in purses):
            if any(purse.is_stale(now) for purse, _ in purses):
                self._wake.set()
            return False
        for purse, amount in purses:
            purse.expect(amount)
        self._wake.set()
        if self._exchanged is None:
            self._exchanged = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(self._exchanged)
        return False

    def _short(self, lacking: Sequence[QuotaShare], now: float) -> Short:
        """Name the budget that has enough the latest, and none that an exchange may fill."""
        hopeless = [part for part in lacking if not self._purse(part).hopes(part.amount, now)]
        part = max(hopeless or lacking, key=lambda part: self._purse(part).lacks_for_s(part.amount, now))
        purse = self._purse(part)
        left = max(0.0, purse.left(now)) + purse.free
        return Short(part, part.rule.most - left, purse.free_in_s(part.amount, now), away=purse.is_away(now))

    def _purse(self, part: QuotaShare) -> QuotaLease:
        purse = self.purses.get(part.name)
        if purse is None:
            purse = self.purses[part.name] = QuotaLease(part.rule)
        elif purse.rule is not part.rule:
            purse.change(part.rule)
        return purse

    async def _exchange(self, now: float) -> bool:
        """Exchange what needs it; a database that is away is told of and asked again later."""
        due = iter([(name, purse) for name, purse in self.purses.items() if _is_due(purse, now)])
        while orders := self._orders(islice(due, MAX_ORDERS), now):
            sent_at = time.monotonic()
            try:
                received = await self._trade(orders)
            except WindlassError as error:
                log.warning("cannot exchange quotas: %s", error.message)
                return False
            self._receive(received, sent_at)
        return True

    def _orders(self, due: Iterator[tuple[Name, QuotaLease]], now: float) -> Orders:
        return {name: (purse.rule, purse.order(now)) for name, purse in due}

    async def _trade(self, orders: Orders) -> dict[Name, Received]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._lend, orders)

    def _receive(self, received: dict[Name, Received], sent_at: float) -> None:
        now = time.monotonic()
        for name, one in received.items():
            purse = self.purses[name]
            purse.receive(one, sent_at, now)
            if purse.is_idle(now):
                del self.purses[name]

    async def _leave(self) -> None:
        """Give back what is free, so that the other gateways need not wait for the end of the term."""
        orders: Orders = {}
        for name, purse in self.purses.items():
            free, purse.free = purse.free, 0.0
            orders[name] = purse.rule, LeaseRequest(back=max(0.0, free))
        with suppress(WindlassError):
            await self._trade(orders)
        self._thread.shutdown(wait=False)


def _is_due(purse: QuotaLease, now: float) -> bool:
    return purse.waiting > 0 or now >= purse.renew_at or purse.is_low(now)
