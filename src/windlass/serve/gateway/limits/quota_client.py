"""This gateway's leases of shared budgets: spent without I/O, renewed in a thread ahead of need.

take -> the leases suffice:      no waiting, no I/O -> settle returns what was not used
     -> they may be extended:    wait for the next exchange, a few milliseconds
     -> they cannot be:          QuotaExceeded, at once, with what is missing

An exchange is one transaction for all leases that need one. Only one runs at a time, so a slow or unreachable
database delays only the requests that wait for it.
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
from windlass.serve.records.quotas import Name, Received, UnsharedQuotas, renew_leases
from windlass.spec.errors import WindlassError
from windlass.store.database import Database

SPACING_S = 0.01
"""Between two exchanges: requests in between share the next one."""
CHECK_S = 0.25
MAX_WAIT_S = 1.0
MAX_ORDERS = 500
"""Maximum in one transaction, so that other gateways get their turn."""

log = logging.getLogger(__name__)
Orders = dict[Name, tuple[Rule, LeaseRequest]]


class QuotaShare(msgspec.Struct, frozen=True):
    """What a request takes from one budget."""

    name: Name
    rule: Rule
    amount: float


class QuotaExceeded(Exception):
    """A budget has less left than a request needs."""

    def __init__(self, part: QuotaShare, used: float, free_in_s: float | None, *, away: bool = False) -> None:
        super().__init__(f"{part.name.scope} {part.name.kind}")
        self.part, self.used, self.free_in_s, self.away = part, used, free_in_s, away


@dataclass(slots=True)
class HeldQuota:
    """What one request holds of one budget."""

    part: QuotaShare
    lease: QuotaLease
    epoch: int
    is_open: bool = True

    def left(self, now: float) -> float:
        """Return what is left of the budget, as far as this gateway knows."""
        return max(0.0, self.lease.left(now)) + self.lease.free

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return the RateLimit headers of the IETF draft; `reset` is the time until the budget is full."""
        capacity = self.part.rule.capacity
        reset_s = self.lease.free_in_s(capacity, now) or 0.0
        return [
            (b"ratelimit-limit", b"%d" % capacity),
            (b"ratelimit-remaining", b"%d" % self.left(now)),
            (b"ratelimit-reset", b"%d" % math.ceil(reset_s)),
        ]

    def settle(self, spent: float) -> None:
        if self.is_open:
            self.is_open = False
            self.lease.settle(self.part.amount, spent, self.epoch, time.monotonic())


class QuotaClient:
    """All leases of one gateway."""

    def __init__(self, database: Database | None, holder: str) -> None:
        lender = UnsharedQuotas().renew_leases if database is None else partial(renew_leases, database)
        self._lend = partial(lender, holder, term_s=TERM_S)
        self.leases: dict[Name, QuotaLease] = {}
        self._wake = asyncio.Event()
        self._exchanged: asyncio.Future[bool] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quotas")

    async def take(self, parts: Sequence[QuotaShare]) -> list[HeldQuota]:
        """Take all parts or none; raise QuotaExceeded if one is not available."""
        now = time.monotonic()
        lacking = self._lacking(parts, now)
        if lacking:
            now = await self._wait_for(parts, lacking, now)
        taken = []
        for part in parts:
            lease = self._lease(part)
            lease.take(part.amount, now)
            if lease.is_low(now):
                self._wake.set()
            taken.append(HeldQuota(part, lease, lease.epoch))
        return taken

    async def run(self) -> None:
        """Renew, extend and return leases while the gateway runs; at the end return everything."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._wake.wait()
                self._wake.clear()
                self._exchanged, awaited = None, self._exchanged
                succeeded = await self._exchange(time.monotonic())
                if awaited is not None and not awaited.done():
                    awaited.set_result(succeeded)
                await asyncio.sleep(SPACING_S)
        finally:
            await asyncio.shield(self._give_back())

    def _lacking(self, parts: Sequence[QuotaShare], now: float) -> list[QuotaShare]:
        lease = self._lease
        return [part for part in parts if not lease(part).has(part.amount, now)]

    async def _wait_for(
        self, parts: Sequence[QuotaShare], lacking: Sequence[QuotaShare], now: float
    ) -> float:
        """Wait until all parts are available and return the time; otherwise raise QuotaExceeded."""
        until = now + MAX_WAIT_S
        # Another request may take what an exchange brought; the next exchange brings more.
        while lacking and now < until and await self._await_exchange(lacking, now):
            now = time.monotonic()
            lacking = self._lacking(parts, now)
        if lacking:
            raise self._short(lacking, now)
        return now

    async def _await_exchange(self, lacking: Sequence[QuotaShare], now: float) -> bool:
        """Wait for the next exchange if it may bring all that is missing; return whether it succeeded."""
        leases = [(self._lease(part), part.amount) for part in lacking]
        for lease, amount in leases:
            lease.note_demand(amount, now)
        if not all(lease.may_get(amount, now) for lease, amount in leases):
            if any(lease.is_stale(now) for lease, _ in leases):
                self._wake.set()
            return False
        for lease, amount in leases:
            lease.expect(amount)
        self._wake.set()
        if self._exchanged is None:
            self._exchanged = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_S):
                return await asyncio.shield(self._exchanged)
        return False

    def _short(self, lacking: Sequence[QuotaShare], now: float) -> QuotaExceeded:
        """Return the error of the budget that takes the longest to refill."""
        unobtainable = [part for part in lacking if not self._lease(part).may_get(part.amount, now)]
        part = max(unobtainable or lacking, key=lambda part: self._lease(part).lacks_for_s(part.amount, now))
        lease = self._lease(part)
        left = max(0.0, lease.left(now)) + lease.free
        return QuotaExceeded(
            part,
            part.rule.capacity - left,
            lease.free_in_s(part.amount, now),
            away=lease.is_disconnected(now),
        )

    def _lease(self, part: QuotaShare) -> QuotaLease:
        lease = self.leases.get(part.name)
        if lease is None:
            lease = self.leases[part.name] = QuotaLease(part.rule)
        elif lease.rule is not part.rule:
            lease.change(part.rule)
        return lease

    async def _exchange(self, now: float) -> bool:
        """Exchange all leases that need it; log a failure of the database and return False."""
        due = iter([(name, lease) for name, lease in self.leases.items() if _is_due(lease, now)])
        while orders := self._orders(islice(due, MAX_ORDERS), now):
            sent_at = time.monotonic()
            try:
                received = await self._trade(orders)
            except WindlassError as error:
                log.warning("cannot exchange quotas with the database: %s", error.message)
                return False
            self._receive(received, sent_at)
        return True

    def _orders(self, due: Iterator[tuple[Name, QuotaLease]], now: float) -> Orders:
        return {name: (lease.rule, lease.order(now)) for name, lease in due}

    async def _trade(self, orders: Orders) -> dict[Name, Received]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._lend, orders)

    def _receive(self, received: dict[Name, Received], sent_at: float) -> None:
        now = time.monotonic()
        for name, reply in received.items():
            lease = self.leases[name]
            lease.receive(reply, sent_at, now)
            if lease.is_idle(now):
                del self.leases[name]

    async def _give_back(self) -> None:
        """Return what is free, so that other gateways need not wait for the end of the term."""
        orders: Orders = {}
        for name, lease in self.leases.items():
            free, lease.free = lease.free, 0.0
            orders[name] = lease.rule, LeaseRequest(back=max(0.0, free))
        with suppress(WindlassError):
            await self._trade(orders)
        self._thread.shutdown(wait=False)


def _is_due(lease: QuotaLease, now: float) -> bool:
    return lease.waiting > 0 or now >= lease.renew_at or lease.is_low(now)
