"""Clients of the control API: runs, looked at and changed while they go on, and plans; see control.py.

with Jobs("http://127.0.0.1:8100", key) as jobs:                        # `windlass control`
    jobs.set("poems", {"train.learning_rate": 1e-4})
    jobs.follow("poems")

with Plans("http://127.0.0.1:8000/admin/control", key) as plans:        # behind a service
    print(plans.ask("job.toml", fleet="64xH100-SXM5"))
"""

from __future__ import annotations

from windlass.sdk.awaiting import AsyncStreams, Awaiting, AwaitingFace, Awaits
from windlass.sdk.blocking import Asks, Blocking, BlockingFace, Streams
from windlass.sdk.control import Control, Planning
from windlass.sdk.faces import Where, exchange_of
from windlass.sdk.retries import Retries

DEADLINE_S = 60.0
ABSENT = "is `windlass control` running there?"


class Jobs(BlockingFace[Control]):
    """Looks at runs and changes them; its methods wait.

    `deadline` holds for each call; watching, waiting and following have none unless it is given there.
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
        super().__init__(Control(exchange, deadline=deadline), driver or Blocking())

    list = Asks(Control.list)
    show = Asks(Control.show)
    journal = Asks(Control.journal)
    curve = Asks(Control.curve)
    audit = Asks(Control.audit)
    goodput = Asks(Control.goodput)
    incidents = Asks(Control.incidents)
    set = Asks(Control.set)
    scale = Asks(Control.scale)
    pause = Asks(Control.pause)
    resume = Asks(Control.resume)
    stop = Asks(Control.stop)
    undo = Asks(Control.undo)
    watch = Streams(Control.watch)
    wait = Asks(Control.wait)
    follow = Asks(Control.follow)


class AsyncJobs(AwaitingFace[Control]):
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
        super().__init__(Control(exchange, deadline=deadline), driver or Awaiting())

    list = Awaits(Control.list)
    show = Awaits(Control.show)
    journal = Awaits(Control.journal)
    curve = Awaits(Control.curve)
    audit = Awaits(Control.audit)
    goodput = Awaits(Control.goodput)
    incidents = Awaits(Control.incidents)
    set = Awaits(Control.set)
    scale = Awaits(Control.scale)
    pause = Awaits(Control.pause)
    resume = Awaits(Control.resume)
    stop = Awaits(Control.stop)
    undo = Awaits(Control.undo)
    watch = AsyncStreams(Control.watch)
    wait = Awaits(Control.wait)
    follow = Awaits(Control.follow)


class Plans(BlockingFace[Planning]):
    """Asks for plans; its methods wait."""

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
