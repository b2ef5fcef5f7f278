"""All replicas that this gateway may ask, and what is under way at them.

A task is placed at a replica, or waits for one. When its replica ends, falls silent or fails it, the task is
placed again and goes on behind the last token that was sent. What is refused for good is what the client got
wrong, what no replica came for in time, and what seems to kill the engines that try it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from windlass.http.errors import ApiError
from windlass.serve.gateway.fleet.engine_link import EngineLink, Loss
from windlass.serve.gateway.fleet.fleet_metrics import FleetMetrics
from windlass.serve.gateway.fleet.known_grammars import Forms
from windlass.serve.gateway.fleet.replica_pool import ReplicaPool
from windlass.serve.gateway.fleet.reports import Reports
from windlass.serve.gateway.fleet.request_handle import Answer, EngineTask, RequestHandle
from windlass.serve.gateway.fleet.retry_budget import RetryBudget
from windlass.serve.gateway.limits.request_cost import EngineCapacity
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.protocol.routing import Routing
from windlass.spec.protocol.wire import EmbeddingVectors, EngineLoad, Failed, ModelInfo, Tokens, Work

TICK_S = 0.25
MEET_S = 0.05
PATIENCE_S = 30.0
MAX_FRUITLESS = 2
"""So many engines in a row may end as they begin with a request; then it is taken for the cause."""
BLAME_S = 2.0
"""A request that an engine has had for longer is not why it ended."""
FREE_MOVES = 4
"""A request that moves more often, and nothing comes of it, takes from the budget of retries."""

CODE_OF = {
    "bad_tokens": "invalid_value",
    "bad_request": "invalid_value",
    "bad_grammar": "invalid_grammar",
    "context_exceeded": "context_length_exceeded",
    "not_generative": "wrong_model_kind",
    "not_embeddable": "wrong_model_kind",
    "unknown_adapter": "model_not_found",
}
"""What the client got wrong, in the API's codes; any other failure is the replica's, and tried elsewhere."""

log = logging.getLogger(__name__)


class ReplicaFleet:
    """Places tasks at replicas, and again when a replica is lost."""

    def __init__(
        self, metrics: Metrics, routing: Routing, *, queue: int, patience_s: float = PATIENCE_S
    ) -> None:
        self.reports = Reports()
        self._counting = FleetMetrics(metrics)
        self._queue = queue
        self._patience_s = patience_s
        self._roster = ReplicaPool(self)
        self._tasks: dict[EngineTask, EngineLink | None] = {}
        self._budget = RetryBudget()
        self._forms = Forms()
        self._routing = routing

    @property
    def is_ready(self) -> bool:
        return any(link.takes for link in self._roster)

    @property
    def links(self) -> Sequence[EngineLink]:
        """One for each replica of the routing table."""
        return list(self._roster)

    @property
    def revision(self) -> int:
        """Of the routing table that is in force."""
        return self._routing.revision

    @property
    def tasks(self) -> Sequence[EngineTask]:
        """Everything under way."""
        return list(self._tasks)

    def check_ready(self) -> None:
        """Raise unless every name has a version that can answer."""
        if not self.is_ready:
            raise _unavailable("no engine is connected; try again shortly")
        alive = self.alive()
        for name, route in self._routing.routes.items():
            if alive.isdisjoint((*route.weights, *route.standby)):
                raise _unavailable(f"no engine for '{name}' is connected; try again shortly")

    def alive(self) -> set[str]:
        """Return the versions that have a replica which answers."""
        return self._roster.alive()

    def room(self, version: str) -> EngineCapacity:
        """Return what the replicas that take requests for a version have."""
        return self._roster.room(version)

    def offered(self, version: str) -> ModelInfo:
        """Return what a replica said about a version, also if it is gone since."""
        offered = self._roster.known(version)
        if offered is None:
            raise _unavailable(f"no engine for '{version}' is connected; try again shortly")
        return offered

    async def meet(self, version: str) -> None:
        """Wait until a replica has said what it offers: a gateway that has just begun has met nobody yet."""
        until = time.monotonic() + self._patience_s
        while not self.is_known(version):
            if time.monotonic() > until:
                raise _unavailable("no engine came up in time; try again shortly")
            await asyncio.sleep(MEET_S)

    def is_known(self, version: str) -> bool:
        return self._roster.known(version) is not None

    async def run(self) -> None:
        """Keep links to all replicas for as long as the gateway lives."""
        self.apply(self._routing)
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._tick(time.monotonic())
        finally:
            await self._roster.close()

    def apply(self, routing: Routing) -> None:
        """Take a routing table: begin with new replicas, note states, let go of those that it has no more."""
        self._routing = routing
        self._roster.apply(routing.replicas)
        self._place_waiting()

    def ask(
        self, requests: Sequence[Work], fallbacks: Sequence[str] = (), *, shadow: bool = False
    ) -> RequestHandle:
        """Have requests answered, each with its version as `model`; the caller closes the ticket."""
        version, now = requests[0].model, time.monotonic()
        if not shadow:
            self._admit(len(requests), version)
        ticket = RequestHandle(self._forget)
        for place, request in enumerate(requests):
            ticket.tasks.append(EngineTask(request, ticket, place, now, list(fallbacks), shadow))
        for task in ticket.tasks:
            self._counting.asked(task)
            self._budget.earn()
            self._place(task)
        return ticket

    def fail_all(self, code: str, message: str) -> None:
        """End everything in flight with one error."""
        for ticket in {task.ticket for task in self._tasks}:
            ticket.fail(ApiError(code, message, retry_after_s=1))

    def on_ready(self, link: EngineLink) -> None:
        self._roster.note(link)
        self._counting.connected(link)
        self._place_waiting()

    def on_lost(self, link: EngineLink, why: Loss) -> None:
        name = link.replica.name
        if why in ("silent", "hung"):
            self.reports.suspect(name, why)
        if link.tasks:
            log.warning("lost %s (%s) with %d answers under way", name, why, len(link.tasks))
        lost, link.tasks = list(link.tasks.values()), {}
        self._counting.lost(link, why)
        for task in lost:
            self._move(task, why)

    def on_load(self, link: EngineLink, load: EngineLoad) -> None:
        link.memory = load.blocks / load.blocks_in_all if load.blocks_in_all else 0.0
        self._counting.told(link, load)

    def on_answer(self, task: EngineTask, message: Answer) -> None:
        now = time.monotonic()
        if isinstance(message, Tokens):
            self._counting.gained(task, message, now)
            if not task.gained:
                self._forms.note(task.request)
        task.take(message, now)
        if isinstance(message, EmbeddingVectors):
            self._end(task, finish="stop")
        elif isinstance(message, Tokens) and message.finish is not None:
            self._end(task, finish=message.finish)

    def on_failed(self, task: EngineTask, failed: Failed) -> None:
        """Refuse what the client got wrong; have anything else tried elsewhere, while the budget lasts."""
        if failed.code in CODE_OF:
            self._refuse(task, ApiError(CODE_OF[failed.code], failed.message))
            return
        self.reports.ended(task, code=failed.code)
        task.avoid.add(task.replica)
        elsewhere = self._roster.candidates(task, task.version)
        if (not elsewhere and not self._fall_back(task)) or not self._budget.take(time.monotonic()):
            self._refuse(task, ApiError("engine_failed", failed.message))
        else:
            self._counting.moved(task, failed.code)
            self._place(task)

    def _admit(self, wanted: int, version: str) -> None:
        """Refuse more than the replicas of a version make and may have waiting; copies take no room."""
        if len(self._tasks) + wanted <= self._queue:
            return  # without counting slots
        slots = self._roster.room(version).slots
        room = slots + self._queue
        if len(self._tasks) + wanted <= room:
            return  # without counting one by one
        under_way = sum(task.version == version and not task.shadow for task in self._tasks)
        if slots and wanted > room:
            raise ApiError(
                "invalid_value", f"{wanted} answers are asked for; this server makes {room} at once"
            )
        if under_way + wanted > room:
            self.reports.refused(version)
            raise ApiError(
                "queue_full",
                f"{under_way} answers are being made or wait already; try again shortly",
                retry_after_s=1,
            )

    def _place(self, task: EngineTask) -> None:
        """Hand a task to a replica; without one it waits, unless another version may answer at once."""
        links = self._roster.candidates(task, task.version)
        if not links and not task.sent and self._fall_back(task):
            links = self._roster.candidates(task, task.version)
        links = links or self._roster.leaving(task)
        if not links:
            self._tasks[task] = None
            task.waiting_since = task.waiting_since or time.monotonic()
            return
        link = self._roster.choose(task, links)
        task.waiting_since, task.gained, task.replica = None, False, link.replica.name
        task.attempts, task.placed_at = task.attempts + 1, time.monotonic()
        task.form_tried = self._forms.is_tried(task.request)
        self._tasks[task] = link
        link.ask(task)

    def _fall_back(self, task: EngineTask) -> bool:
        """Have another version answer, if one can; its vocabulary is the same."""
        for version in task.fallbacks:
            if version != task.version and self._roster.candidates(task, version):
                task.request = msgspec.structs.replace(task.request, model=version)
                return True
        return False

    def _move(self, task: EngineTask, why: Loss) -> None:
        """Go on elsewhere with a task whose replica was lost."""
        self.reports.ended(task, code="lost")
        if not task.gained:
            task.fruitless += why == "ended" and time.monotonic() - task.placed_at < BLAME_S
            task.idle_moves += 1
        if task.fruitless >= MAX_FRUITLESS:
            text = f"{task.fruitless} engines ended while they began with this request; it is not tried again"
            self._refuse(task, ApiError("poisonous", text))
        elif task.idle_moves > FREE_MOVES and not self._budget.take(time.monotonic()):
            self._refuse(task, _unavailable("engines end too often to go on; try again shortly"))
        else:
            self._counting.moved(task, why)
            self._place(task)

    def _place_waiting(self) -> None:
        for task in [task for task, link in self._tasks.items() if link is None]:
            self._place(task)

    def _tick(self, now: float) -> None:
        for link in self._roster:
            link.tick()
        for task in [task for task, link in self._tasks.items() if link is None]:
            if task.waiting_since is None or now - task.waiting_since < self._patience_s:
                continue
            if self._fall_back(task):
                self._place(task)
            else:
                self._refuse(task, _unavailable("no engine came up in time; try again shortly"))

    def _refuse(self, task: EngineTask, error: ApiError) -> None:
        self._end(task, code=error.code if error.status >= 500 else None)
        task.ticket.fail(error)

    def _end(self, task: EngineTask, *, code: str | None = "", finish: str = "") -> None:
        """Take a task off the books; without a code (a client's mistake) it says nothing of its replica."""
        if task.ended:
            return
        task.ended = True
        self._tasks.pop(task, None)
        self._counting.ended(task, finish, time.monotonic())
        if code is not None:
            self.reports.ended(task, code=code, finish=finish)

    def _forget(self, task: EngineTask) -> None:
        """Nobody waits for a task any more."""
        if task.ended:
            return
        link = self._tasks.get(task)
        if link is not None:
            link.drop(task)
        self._end(task, finish="cancelled")


def _unavailable(message: str) -> ApiError:
    return ApiError("engine_unavailable", message, retry_after_s=1)
