"""Lets requests in: while the service does full work, in time, and within everybody's limits.

admit: brown-out -> time (wait, deadline) -> limits -> a grant. None of it waits for I/O but the last, and
that only where the database may have room to lend. The newest is refused first: what was let in keeps its
place.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from windlass.http.errors import ApiError
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.limits import brown_out, limit_errors
from windlass.serve.gateway.limits.backlog import Backlog
from windlass.serve.gateway.limits.estimate import LoadAhead, WaitEstimate
from windlass.serve.gateway.limits.limit_rules import LimitRules
from windlass.serve.gateway.limits.quota_client import HeldQuota, QuotaClient, QuotaShare, Short
from windlass.serve.gateway.limits.request_cost import EngineCapacity, RequestCost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.records.bucket import Kind, Rule
from windlass.serve.records.quotas import Name, standings
from windlass.spec.errors import StoreFailed
from windlass.spec.limits import ServeLimits
from windlass.store.database import Database

LOOK_EVERY_S = 0.25
BROWN_OUT = b"x-windlass-brown-out"


class AdmissionController:
    """Admission for one gateway; `holder` is a name that no other gateway of the database has."""

    def __init__(
        self,
        settings: ServeLimits,
        database: Database | None,
        room: Callable[[str], EngineCapacity],
        metrics: Metrics,
        *,
        holder: str,
        gateways: int = 1,
    ) -> None:
        self._settings, self._room, self._metrics = settings, room, metrics
        self._gateways, self._database = gateways, database
        self._book = LimitRules(settings, database)
        self._treasury = QuotaClient(database, holder)
        self._lines: defaultdict[str, Backlog] = defaultdict(Backlog)
        self._lately = brown_out.Lately()
        self._rung = brown_out.Rung()

    @property
    def level(self) -> int:
        """The level of the brown-out ladder that is in force."""
        return self._rung.level

    async def admit(self, caller: Caller, wish: RequestCost) -> Admitted:
        """Grant room, or raise ApiError with the time after which it is worth asking again."""
        line = self._lines[wish.model]
        try:
            load = self._check_time(wish, line, caller.tenant)
            admitted = Admitted(line, wish, load, self.level, caller.tenant)
            try:
                admitted.took(await self._take(caller, wish))
            except BaseException:
                admitted.settle(0)
                raise
        except ApiError as error:
            self._metrics.refused.labels(error.code).inc()
            raise
        self._lately.count(wish.priority, time.monotonic(), let_in=True)
        return admitted

    def estimate(self, wish: RequestCost) -> WaitEstimate:
        """Say how long a request would take that came now."""
        line = self._lines[wish.model]
        return line.pace.estimate(wish, self._load(wish.model, line))

    async def left(self, caller: Caller) -> list[tuple[Name, Rule, float]]:
        """Say what is left of every budget that a caller's requests take from, parts lent out included."""
        rules = dict(await self._book.rules(caller))
        if self._database is None or not rules:
            return []
        found = await asyncio.to_thread(standings, self._database, rules)
        return [(each.name, rules[each.name], each.left + each.lent) for each in found]

    async def run(self) -> None:
        """Keep what is held of shared budgets, and the level, for as long as the gateway lives."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._treasury.run())
            group.create_task(self._watch())

    def step(self, now: float) -> None:
        """Decide on the level."""
        waits = [
            line.pace.estimate(RequestCost(model, 1, 0, 1), self._load(model, line)).wait_s
            for model, line in self._lines.items()
        ]
        memory = max((self._room(model).memory for model in self._lines), default=0.0)
        pressure = self._lately.pressure(
            now, wait=max(waits, default=0.0) / self._settings.wait, memory=memory
        )
        self._rung = brown_out.decide(self._rung, pressure, self._settings.brown_out, now)
        self._metrics.brownout.set(self._rung.level)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.step(time.monotonic())

    def _check_time(self, wish: RequestCost, line: Backlog, tenant: str) -> LoadAhead:
        """Refuse what the ladder leaves out, what would wait too long, and what would be too late."""
        load = self._load(wish.model, line)
        before_s = load.unread_s * line.share_before(tenant, wish.prompt_tokens)
        estimate = line.pace.estimate(wish, msgspec.structs.replace(load, unread_s=before_s))
        error = limit_errors.less(self.level, wish, self._settings.brown_out.calm)
        if error is None and estimate.wait_s > self._settings.wait:
            error = limit_errors.no_time(estimate, self._settings.wait)
        if error is not None:
            self._lately.count(wish.priority, time.monotonic(), no_room=True)
            try:
                raise error
            finally:
                del error  # or it and this frame would hold each other, until somebody looks for cycles
        if wish.deadline_s is not None and estimate.whole_s > wish.deadline_s:
            raise limit_errors.too_late(estimate, wish.deadline_s)
        return load

    def _load(self, model: str, line: Backlog) -> LoadAhead:
        """Say what is under way here; of the slots, this gateway counts on its part.

        Where no engine is connected, nothing is said of time: the fleet has patience of its own.
        """
        slots = self._room(model).slots
        if not slots:
            return LoadAhead()
        return LoadAhead(line.answers, line.unread_s(time.monotonic()), max(1, slots // self._gateways))

    async def _take(self, caller: Caller, wish: RequestCost) -> list[HeldQuota]:
        """Take what the request needs of every budget."""
        try:
            rules = await self._book.rules(caller)
            if not rules:
                return []
            amounts = amounts_of(wish)
            return await self._treasury.take(
                [QuotaShare(name, rule, amounts[name.kind]) for name, rule in rules if amounts[name.kind]]
            )
        except StoreFailed:
            raise limit_errors.away() from None
        except Short as error:
            raise limit_errors.short(error) from None


def amounts_of(wish: RequestCost) -> dict[Kind, float]:
    """Return what a request takes of each kind of budget: tokens as many as there may be, at most."""
    tokens = wish.prompt_tokens + wish.max_tokens
    return {
        "requests": 1,
        "tokens_minute": tokens,
        "tokens_day": tokens,
        "concurrent": 1,
        "queue": 1,
        "queue_tokens": wish.prompt_tokens,
    }


class Admitted:
    """Room that one request has, and what is learned from it."""

    def __init__(
        self, line: Backlog, wish: RequestCost, load: LoadAhead, level: int = 0, tenant: str = ""
    ) -> None:
        self._line, self._wish, self._level, self._tenant = line, wish, level, tenant
        self._taken: Sequence[HeldQuota] = ()
        self._flows: Sequence[HeldQuota] = ()
        """Those that fill with time, of which callers are told."""
        self._at = time.monotonic()
        self._first_at: float | None = None
        line.came(wish, self._at, tenant)
        self._has_slot = load.answers + wish.answers <= load.slots

    def took(self, taken: Sequence[HeldQuota]) -> None:
        """Hold parts of budgets; that a request came is spent at once."""
        self._taken = taken
        self._flows = [each for each in taken if each.part.rule.fills != "permits"]
        for each in taken:
            if each.part.name.kind == "requests":
                each.settle(1)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Tell the level, if there is one, and the rate or quota that is nearest to its end."""
        told = [(BROWN_OUT, b"%d" % self._level)] if self._level else []
        now = time.monotonic()
        if self._flows:
            shares = [taken.left(now) / taken.part.rule.most for taken in self._flows]
            told += self._flows[shares.index(min(shares))].headers(now)
        return told

    def began(self) -> None:
        self._first_at = now = time.monotonic()
        self._line.began(self._at, self._wish, now, has_slot=self._has_slot, tenant=self._tenant)
        for taken in self._taken:
            if taken.part.name.kind in ("queue", "queue_tokens"):
                taken.settle(0)

    def settle(self, tokens: int) -> None:
        now = time.monotonic()
        self._line.answers -= self._wish.answers
        if self._first_at is None:
            self._line.read(self._wish, self._tenant)
        else:
            written = tokens - self._wish.prompt_tokens
            self._line.pace.ended(self._wish, now - self._first_at, written)
        for taken in self._taken:
            if taken.is_open:
                taken.settle(tokens if taken.part.name.kind in ("tokens_minute", "tokens_day") else 0)
