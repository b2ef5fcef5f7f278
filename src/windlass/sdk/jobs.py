"""Clients of the control API: follow and change runs, and make plans. The calls are in `control`.

with Jobs("http://127.0.0.1:8100", key) as jobs:                        # `windlass control`
    jobs.set("poems", {"train.learning_rate": 1e-4})
    jobs.follow("poems")

with Plans("http://127.0.0.1:8000/admin/control", key) as plans:        # behind a service
    print(plans.ask("job.toml", fleet="64xH100-SXM5"))
"""

from __future__ import annotations

from windlass.sdk.awaiting import AsyncStreams, Awaiting, AwaitingFace, Awaits
from windlass.sdk.blocking import Asks, Blocking, BlockingFace, Streams
from windlass.sdk.control import ControlCalls, Planning
from windlass.sdk.faces import Where, exchange_of
from windlass.sdk.retries import Retries

DEADLINE_S = 60.0
ABSENT = "is `windlass control` running there?"


class Jobs(BlockingFace[ControlCalls]):
    """A synchronous client for runs.

    `deadline` applies to each call; `watch`, `wait` and `follow` have none unless it is given there.
    """

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
        super().__init__(ControlCalls(exchange, deadline=deadline), driver or Blocking())

    list = Asks(ControlCalls.list)
    show = Asks(ControlCalls.show)
    journal = Asks(ControlCalls.journal)
    curve = Asks(ControlCalls.curve)
    audit = Asks(ControlCalls.audit)
    goodput = Asks(ControlCalls.goodput)
    incidents = Asks(ControlCalls.incidents)
    set = Asks(ControlCalls.set)
    scale = Asks(ControlCalls.scale)
    pause = Asks(ControlCalls.pause)
    resume = Asks(ControlCalls.resume)
    stop = Asks(ControlCalls.stop)
    undo = Asks(ControlCalls.undo)
    watch = Streams(ControlCalls.watch)
    wait = Asks(ControlCalls.wait)
    follow = Asks(ControlCalls.follow)


class AsyncJobs(AwaitingFace[ControlCalls]):
    """The same as Jobs, for event loops."""

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
        super().__init__(ControlCalls(exchange, deadline=deadline), driver or Awaiting())

    list = Awaits(ControlCalls.list)
    show = Awaits(ControlCalls.show)
    journal = Awaits(ControlCalls.journal)
    curve = Awaits(ControlCalls.curve)
    audit = Awaits(ControlCalls.audit)
    goodput = Awaits(ControlCalls.goodput)
    incidents = Awaits(ControlCalls.incidents)
    set = Awaits(ControlCalls.set)
    scale = Awaits(ControlCalls.scale)
    pause = Awaits(ControlCalls.pause)
    resume = Awaits(ControlCalls.resume)
    stop = Awaits(ControlCalls.stop)
    undo = Awaits(ControlCalls.undo)
    watch = AsyncStreams(ControlCalls.watch)
    wait = Awaits(ControlCalls.wait)
    follow = Awaits(ControlCalls.follow)


class Plans(BlockingFace[Planning]):
    """A synchronous client of the planner."""

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
        super().__init__(Planning(exchange, deadline=deadline), driver or Blocking())

    ask = Asks(Planning.ask)
    choices = Asks(Planning.choices)


class AsyncPlans(AwaitingFace[Planning]):
    """The same as Plans, for event loops."""

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
        super().__init__(Planning(exchange, deadline=deadline), driver or Awaiting())

    ask = Awaits(Planning.ask)
    choices = Awaits(Planning.choices)
