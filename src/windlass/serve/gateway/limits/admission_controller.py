"""Admits requests: the one place that decides whether the engines work on a request now.

admit (a RequestCost): brown-out -> time (wait, deadline) -> the caller's limits -> a place at the engines
-> an AdmittedCost, which learns when the work began and what it really used.

Only the limits may wait for I/O, and only if the database may have quota left to lease; places are counted
after that, at the moment of the decision. New requests are refused first; admitted ones keep their place.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from windlass.http.errors import ApiError
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.limits import brown_out, limit_errors
from windlass.serve.gateway.limits.backlog import Backlog
from windlass.serve.gateway.limits.estimate import LoadAhead, WaitEstimate
from windlass.serve.gateway.limits.limit_rules import LimitRules
from windlass.serve.gateway.limits.quota_client import HeldQuota, QuotaClient, QuotaExceeded, QuotaShare
from windlass.serve.gateway.limits.request_cost import EngineCapacity, RequestCost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.records.bucket import Kind, Rule
from windlass.serve.records.quotas import Name, quota_states
from windlass.spec.errors import StoreFailed
from windlass.spec.limits import ServeLimits
from windlass.store.database import Database

STEP_S = 0.25
BROWN_OUT = b"x-windlass-brown-out"


class Occupancy(Protocol):
    """What admission sees of the engines."""

    def capacity(self, version: str) -> EngineCapacity:
        """Return the capacity of the replicas that take requests for a version."""

    def in_progress(self, version: str = "") -> int:
        """Return the answers in progress: of one version, without shadow copies; or all."""


class AdmissionController:
    """Admission for one gateway; `holder` names it in the database and must be unique there."""

    def __init__(
        self,
        settings: ServeLimits,
        database: Database | None,
        engines: Occupancy,
        metrics: Metrics,
        *,
        holder: str,
        queue: int,
        gateways: int = 1,
    ) -> None:
        self._settings, self._engines, self._metrics = settings, engines, metrics
        self._database = database
        self._queue, self._gateways = queue, gateways
        """How many answers may wait for a slot here, and how many gateways share the slots."""
        self._limit_rules = LimitRules(settings, database)
        self._quota_client = QuotaClient(database, holder)
        self._backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)
        self._recent = brown_out.RecentRequests()
        self._brown_out = brown_out.BrownOutState()

    @property
    def level(self) -> int:
        """The current brown-out level."""
        return self._brown_out.level

    async def admit(self, caller: Caller, cost: RequestCost) -> AdmittedCost:
        """Admit a request, or raise ApiError with the time after which to retry.

        Submit it to the engines before the next await, so that it is counted before the next decision.
        """
        backlog = self._backlogs[cost.model]
        try:
            load = self._check_time(cost, backlog, caller.tenant)
            admitted = AdmittedCost(backlog, cost, load, self.level, caller.tenant)
            try:
                admitted.took(await self._take(caller, cost))
                self._check_queue(cost)
            except BaseException:
                admitted.settle(0)
                raise
        except ApiError as error:
            self._metrics.refused.labels(error.code).inc()
            raise
        self._recent.count(cost.priority, time.monotonic(), admitted=True)
        return admitted

    def estimate(self, cost: RequestCost) -> WaitEstimate:
        """Return how long a request that arrives now would take."""
        backlog = self._backlogs[cost.model]
        return backlog.speed.estimate(cost, self._load(cost.model, backlog))

    async def left(self, caller: Caller) -> list[tuple[Name, Rule, float]]:
        """Return what is left of every budget of a caller, including what is leased to gateways."""
        rules = dict(await self._limit_rules.rules(caller))
        if self._database is None or not rules:
            return []
        found = await asyncio.to_thread(quota_states, self._database, rules)
        return [(each.name, rules[each.name], each.left + each.lent) for each in found]

    async def run(self) -> None:
        """Renew the quota leases and update the brown-out level while the gateway runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._quota_client.run())
            group.create_task(self._watch())

    def step(self, now: float) -> None:
        """Update the brown-out level."""
        waits = [
            backlog.speed.estimate(RequestCost(model, 1, 0, 1), self._load(model, backlog)).wait_s
            for model, backlog in self._backlogs.items()
        ]
        memory = max((self._engines.capacity(model).memory for model in self._backlogs), default=0.0)
        pressure = self._recent.pressure(
            now, wait=max(waits, default=0.0) / self._settings.wait, memory=memory
        )
        self._brown_out = brown_out.decide(self._brown_out, pressure, self._settings.brown_out, now)
        self._metrics.brownout.set(self._brown_out.level)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            self.step(time.monotonic())

    def _check_time(self, cost: RequestCost, backlog: Backlog, tenant: str) -> LoadAhead:
        """Raise ApiError if the brown-out level excludes a request, or if it would take too long."""
        load = self._load(cost.model, backlog)
        before_s = load.unread_s * backlog.share_before(tenant, cost.prompt_tokens)
        estimate = backlog.speed.estimate(cost, msgspec.structs.replace(load, unread_s=before_s))
        error = limit_errors.excluded_by(self.level, cost, self._settings.brown_out.calm)
        if error is None and estimate.wait_s > self._settings.wait:
            error = limit_errors.queue_full(estimate, self._settings.wait)
        if error is not None:
            self._recent.count(cost.priority, time.monotonic(), refused=True)
            try:
                raise error
            finally:
                del error  # breaks the reference cycle of the exception and this frame
        if cost.deadline_s is not None and estimate.whole_s > cost.deadline_s:
            raise limit_errors.deadline_unreachable(estimate, cost.deadline_s)
        return load

    def _check_queue(self, cost: RequestCost) -> None:
        """Raise ApiError for answers beyond the slots of a version and the queue."""
        engines, wanted = self._engines, cost.answers
        if engines.in_progress() + wanted <= self._queue:
            return  # no need to count slots
        slots = engines.capacity(cost.model).slots
        places = slots + self._queue
        if engines.in_progress() + wanted <= places:
            return  # no need to count the answers of the version
        if slots and wanted > places:
            raise limit_errors.too_many_answers(wanted, places)
        if (running := engines.in_progress(cost.model)) + wanted > places:
            raise limit_errors.no_place(running)

    def _load(self, model: str, backlog: Backlog) -> LoadAhead:
        """Return the load ahead of a new request; this gateway counts on its share of the slots.

        Without a connected engine there is no estimate: the fleet waits for an engine by its own timeout.
        """
        slots = self._engines.capacity(model).slots
        if not slots:
            return LoadAhead()
        return LoadAhead(backlog.answers, backlog.unread_s(time.monotonic()), max(1, slots // self._gateways))

    async def _take(self, caller: Caller, cost: RequestCost) -> list[HeldQuota]:
        """Take what the request needs from every budget."""
        try:
            rules = await self._limit_rules.rules(caller)
            if not rules:
                return []
            amounts = amounts_of(cost)
            return await self._quota_client.take(
                [QuotaShare(name, rule, amounts[name.kind]) for name, rule in rules if amounts[name.kind]]
            )
        except StoreFailed:
            raise limit_errors.database_unavailable() from None
        except QuotaExceeded as error:
            raise limit_errors.quota_exceeded(error) from None


def amounts_of(cost: RequestCost) -> dict[Kind, float]:
    """Return what a request takes from each kind of budget; tokens at their maximum."""
    tokens = cost.prompt_tokens + cost.max_tokens
    return {
        "requests": 1,
        "tokens_minute": tokens,
        "tokens_day": tokens,
        "concurrent": 1,
        "queue": 1,
        "queue_tokens": cost.prompt_tokens,
    }


class AdmittedCost:
    """The cost of an admitted request until it ends: what it holds of every quota, and of the backlog."""

    def __init__(
        self, backlog: Backlog, cost: RequestCost, load: LoadAhead, level: int = 0, tenant: str = ""
    ) -> None:
        self._backlog, self._cost, self._level, self._tenant = backlog, cost, level, tenant
        self._taken: Sequence[HeldQuota] = ()
        self._flows: Sequence[HeldQuota] = ()
        """Quotas that refill with time; the response headers report these."""
        self._at = time.monotonic()
        self._first_at: float | None = None
        backlog.came(cost, self._at, tenant)
        self._has_slot = load.answers + cost.answers <= load.slots

    def took(self, taken: Sequence[HeldQuota]) -> None:
        """Hold quotas; the quota for the number of requests is spent at once."""
        self._taken = taken
        self._flows = [each for each in taken if each.part.rule.fills != "permits"]
        for each in taken:
            if each.part.name.kind == "requests":
                each.settle(1)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return headers: the brown-out level, if above 0, and the quota with the smallest share left."""
        headers = [(BROWN_OUT, b"%d" % self._level)] if self._level else []
        now = time.monotonic()
        if self._flows:
            shares = [taken.left(now) / taken.part.rule.capacity for taken in self._flows]
            headers += self._flows[shares.index(min(shares))].headers(now)
        return headers

    def began(self) -> None:
        """Note the first token: the request no longer waits. Called at most once."""
        self._first_at = now = time.monotonic()
        self._backlog.began(self._at, self._cost, now, has_slot=self._has_slot, tenant=self._tenant)
        for taken in self._taken:
            if taken.part.name.kind in ("queue", "queue_tokens"):
                taken.settle(0)

    def settle(self, tokens: int) -> None:
        """Return what was not used of the quotas; `tokens` is the sum of prompt and answers. Called once."""
        now = time.monotonic()
        self._backlog.answers -= self._cost.answers
        if self._first_at is None:
            self._backlog.read(self._cost, self._tenant)
        else:
            written = tokens - self._cost.prompt_tokens
            self._backlog.speed.ended(self._cost, now - self._first_at, written)
        for taken in self._taken:
            if taken.is_open:
                taken.settle(tokens if taken.part.name.kind in ("tokens_minute", "tokens_day") else 0)
