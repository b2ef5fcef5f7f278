"""The calls of a control plane's job queue, as pure generators, and their clients Queue and AsyncQueue.

with Queue("http://127.0.0.1:8100", key) as queue:                      # `windlass control`
    job = queue.submit(Path("poems.toml").read_text(), priority=5)
    queue.wait(job["name"])

Several addresses may be given, of control planes that share a database: any that answers is used. A submit
carries a unique key, so that one whose reply was lost can be sent again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from windlass.sdk.awaiting import Awaiting, AwaitingFace, Awaits
from windlass.sdk.blocking import Asks, Blocking, BlockingFace
from windlass.sdk.effects import Call, Request, look, wait
from windlass.sdk.exchange import RequestRunner
from windlass.sdk.faces import Where, exchange_of
from windlass.sdk.failures import DeadlinePassed
from windlass.sdk.jobs import ABSENT, DEADLINE_S
from windlass.sdk.retries import Retries

Json = dict[str, Any]
Jsons = list[Json]
OVER = ("done", "failed", "stopped")
LOOK_EVERY_S = 1.0


class Queueing:
    """The calls of the queue. A job is named by NAME, or by its uid."""

    def __init__(self, exchange: RequestRunner, *, deadline: float | None) -> None:
        self.exchange = exchange
        self._deadline = deadline

    def submit(
        self,
        job: str | None = None,
        *,
        service: Mapping[str, Any] | None = None,
        name: str | None = None,
        priority: int = 0,
        tenant: str | None = None,
    ) -> Call[Json]:
        """Submit a job, as the text of its file, or a service; return its state.

        queue.submit(Path("poems.toml").read_text(), priority=5)
        """
        body: Json = {"job": job, "service": service, "name": name, "priority": priority, "tenant": tenant}
        given = {key: value for key, value in body.items() if value is not None}
        headers = {"idempotency-key": secrets.token_urlsafe(16)}
        return (yield from self._send(Request("POST", "/v1/queue", given, headers=headers, repeats=True)))

    def list(self, *, tenant: str | None = None, phase: str | None = None) -> Call[Jsons]:
        """Return all jobs, oldest first; of one tenant, or in some phases ("queued,running")."""
        jobs: Jsons = []
        after: str | None = None
        while True:
            page = yield from self._get("/v1/queue", tenant=tenant, phase=phase, after=after, limit=500)
            jobs += page["jobs"]
            after = page["next"]
            if after is None:
                return jobs

    def show(self, name: str, *, tenant: str | None = None) -> Call[Json]:
        """Return the state of a job."""
        return (yield from self._get(_path(name), tenant=tenant))

    def events(self, name: str, *, tenant: str | None = None, after: int = 0) -> Call[Jsons]:
        """Return the events of a job."""
        reply = yield from self._get(f"{_path(name)}/events", tenant=tenant, after=after)
        events: Jsons = reply["events"]
        return events

    def explain(self, name: str, *, tenant: str | None = None) -> Call[Json]:
        """Return why a job waits, and which jobs are ahead of it."""
        return (yield from self._get(f"{_path(name)}/explain", tenant=tenant))

    def journal(self, name: str, *, tenant: str | None = None, after: int = 0) -> Call[Jsons]:
        """Return the journal records of a job's run, without the first `after`."""
        records: Jsons = []
        while True:
            at = after + len(records)
            reply = yield from self._get(f"{_path(name)}/journal", tenant=tenant, after=at)
            if not reply["records"]:
                return records
            records += reply["records"]

    def stop(self, name: str, *, tenant: str | None = None) -> Call[Json]:
        """Remove a job from the queue; a running job saves a checkpoint and ends."""
        return (yield from self._post(f"{_path(name)}/stop", {}, tenant))

    def set_priority(self, name: str, priority: int, *, tenant: str | None = None) -> Call[Json]:
        """Change the priority of a job."""
        return (yield from self._post(f"{_path(name)}/priority", {"priority": priority}, tenant))

    def wait(self, name: str, *, tenant: str | None = None, deadline: float | None = None) -> Call[Json]:
        """Wait until a job ends; return its final state."""
        began = yield from look()
        while True:
            job = yield from self.show(name, tenant=tenant)
            if job["phase"] in OVER:
                return job
            now = yield from look()
            if deadline is not None and now - began >= deadline:
                raise DeadlinePassed(f"job {name} is {job['phase']} after {deadline:g} s")
            yield from wait(LOOK_EVERY_S)

    def shares(self) -> Call[Jsons]:
        """Return the weights, quotas and recent usage of tenants."""
        reply = yield from self._get("/v1/shares")
        shares: Jsons = reply["shares"]
        return shares

    def set_share(
        self,
        tenant: str,
        *,
        weight: float = 1.0,
        cores: float | None = None,
        memory_bytes: int | None = None,
        gpus: int | None = None,
        jobs: int | None = None,
        priority: int | None = None,
    ) -> Call[Json]:
        """Set the fair-share weight and the quota of a tenant; None is no limit."""
        limits = {"cores": cores, "memory_bytes": memory_bytes, "gpus": gpus, "jobs": jobs}
        share = {"weight": weight, **limits, "priority": priority}
        return (yield from self._send(Request("PUT", f"/v1/shares/{quote(tenant)}", share, repeats=True)))

    def plane(self) -> Call[Json]:
        """Return the leader and the state of the control plane."""
        return (yield from self._get("/v1/plane"))

    def _get(self, path: str, **query: Any) -> Call[Json]:
        encoded = urlencode({key: value for key, value in query.items() if value is not None})
        return (yield from self._send(Request("GET", f"{path}?{encoded}" if encoded else path, repeats=True)))

    def _post(self, path: str, body: Json, tenant: str | None) -> Call[Json]:
        """Send a change; all of them are idempotent, so they may be sent again."""
        path = path if tenant is None else f"{path}?{urlencode({'tenant': tenant})}"
        return (yield from self._send(Request("POST", path, body, repeats=True)))

    def _send(self, request: Request) -> Call[Json]:
        attempt = yield from self.exchange.begin(self._deadline)
        answer = yield from self.exchange.ask(request, attempt)
        return answer.read(dict)


def _path(name: str) -> str:
    return f"/v1/queue/{quote(name, safe='')}"


class Queue(BlockingFace[Queueing]):
    """A synchronous client of a control plane's job queue."""

    def __init__(
        self,
        where: Where,
        key: str | None = None,
        *,
        deadline: float | None = DEADLINE_S,
        retries: Retries | None = None,
        driver: Blocking | None = None,
    ) -> None:
        exchange = exchange_of(where, key, retries=retries, circuit=None, absent=ABSENT)
        super().__init__(Queueing(exchange, deadline=deadline), driver or Blocking())

    submit = Asks(Queueing.submit)
    list = Asks(Queueing.list)
    show = Asks(Queueing.show)
    events = Asks(Queueing.events)
    explain = Asks(Queueing.explain)
    journal = Asks(Queueing.journal)
    stop = Asks(Queueing.stop)
    set_priority = Asks(Queueing.set_priority)
    wait = Asks(Queueing.wait)
    shares = Asks(Queueing.shares)
    set_share = Asks(Queueing.set_share)
    plane = Asks(Queueing.plane)


class AsyncQueue(AwaitingFace[Queueing]):
    """The same as Queue, for event loops."""

    def __init__(
        self,
        where: Where,
        key: str | None = None,
        *,
        deadline: float | None = DEADLINE_S,
        retries: Retries | None = None,
        driver: Awaiting | None = None,
    ) -> None:
        exchange = exchange_of(where, key, retries=retries, circuit=None, absent=ABSENT)
        super().__init__(Queueing(exchange, deadline=deadline), driver or Awaiting())

    submit = Awaits(Queueing.submit)
    list = Awaits(Queueing.list)
    show = Awaits(Queueing.show)
    events = Awaits(Queueing.events)
    explain = Awaits(Queueing.explain)
    journal = Awaits(Queueing.journal)
    stop = Awaits(Queueing.stop)
    set_priority = Awaits(Queueing.set_priority)
    wait = Awaits(Queueing.wait)
    shares = Awaits(Queueing.shares)
    set_share = Awaits(Queueing.set_share)
    plane = Awaits(Queueing.plane)
