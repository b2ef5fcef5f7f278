"""All replicas of this gateway, and the tasks in progress at them.

A task is placed at a replica, or waits for one. When its replica ends, falls silent or fails it, the task is
placed again and continues after the last token that was sent. A task fails if the request is wrong, if no
replica connects in time, or if it seems to crash the engines that try it. Which requests may come here at all
is decided before, by `limits.admission_controller`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from math import ceil

import msgspec

from windlass.http.errors import ApiError
from windlass.http.token_bucket import TokenBucket
from windlass.serve.gateway.fleet.engine_link import EngineLink, Loss
from windlass.serve.gateway.fleet.fleet_metrics import FleetMetrics
from windlass.serve.gateway.fleet.known_grammars import KnownGrammars
from windlass.serve.gateway.fleet.replica_pool import ReplicaPool
from windlass.serve.gateway.fleet.reports import Reports
from windlass.serve.gateway.fleet.request_handle import AnswerMessage, EngineTask, RequestHandle
from windlass.serve.gateway.limits.request_cost import EngineCapacity
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.protocol.routing import Routing
from windlass.spec.protocol.wire import EmbeddingVectors, EngineLoad, Failed, ModelInfo, Tokens, Work

TICK_S = 0.25
POLL_S = 0.05
MAX_WAIT_S = 30.0
MAX_FRUITLESS = 2
"""When this many engines in a row end as they start a request, it counts as the cause."""
BLAME_S = 2.0
"""A request that an engine has had for longer does not count as the cause of its end."""
FREE_MOVES = 4
"""A request that moves more often without progress uses the retry budget."""
RETRY_CAPACITY, RETRIES_PER_S, RETRIES_PER_REQUEST = 32.0, 1.0, 0.1
"""The retry budget: retries are a share of the requests, so that they cannot cause an overload; the rate is
for times with few requests."""

CODE_OF = {
    "bad_tokens": "invalid_value",
    "bad_request": "invalid_value",
    "bad_grammar": "invalid_grammar",
    "context_exceeded": "context_length_exceeded",
    "not_generative": "wrong_model_kind",
    "not_embeddable": "wrong_model_kind",
    "unknown_adapter": "model_not_found",
}
"""API codes of the engine failures that the request caused; after any other, another replica is tried."""

log = logging.getLogger(__name__)


class ReplicaFleet:
    """Places tasks at replicas, and again when a replica is lost."""

    def __init__(self, metrics: Metrics, routing: Routing, *, patience_s: float = MAX_WAIT_S) -> None:
        self.reports = Reports()
        self._metrics = FleetMetrics(metrics)
        self._patience_s = patience_s
        self._pool = ReplicaPool(self)
        self._tasks: dict[EngineTask, EngineLink | None] = {}
        self._retries = TokenBucket(RETRY_CAPACITY, RETRIES_PER_S)
        self._grammars = KnownGrammars()
        self._routing = routing

    @property
    def is_ready(self) -> bool:
        return any(link.takes for link in self._pool)

    @property
    def links(self) -> Sequence[EngineLink]:
        """One link for each replica of the routing table."""
        return list(self._pool)

    @property
    def revision(self) -> int:
        """The revision of the current routing table."""
        return self._routing.revision

    @property
    def tasks(self) -> Sequence[EngineTask]:
        """All tasks in progress."""
        return list(self._tasks)

    def check_ready(self) -> None:
        """Raise ApiError unless every name has a version that can answer."""
        if not self.is_ready:
            raise _unavailable("no engine is connected; try again shortly")
        alive = self.alive()
        for name, route in self._routing.routes.items():
            if alive.isdisjoint((*route.weights, *route.standby)):
                raise _unavailable(f"no engine for '{name}' is connected; try again shortly")

    def alive(self) -> set[str]:
        """Return the versions that have a replica that takes requests."""
        return self._pool.alive()

    def capacity(self, version: str) -> EngineCapacity:
        """Return the capacity of the replicas that take requests for a version."""
        return self._pool.capacity(version)

    def in_progress(self, version: str = "") -> int:
        """Return the answers in progress: of one version, without shadow copies; or all."""
        if not version:
            return len(self._tasks)
        return sum(task.version == version and not task.shadow for task in self._tasks)

    def model_info(self, version: str) -> ModelInfo:
        """Return what a replica reported about a version, even if it is gone since."""
        model_info = self._pool.known(version)
        if model_info is None:
            raise _unavailable(f"no engine for '{version}' is connected; try again shortly")
        return model_info

    async def wait_until_known(self, version: str) -> None:
        """Wait until a replica of a version has introduced itself, which takes a moment after the start."""
        for _ in range(ceil(self._patience_s / POLL_S)):
            if self.is_known(version):
                return
            await asyncio.sleep(POLL_S)
        if not self.is_known(version):
            raise _unavailable("no engine connected in time; try again shortly")

    def is_known(self, version: str) -> bool:
        return self._pool.known(version) is not None

    async def run(self) -> None:
        """Maintain the links to all replicas while the gateway runs."""
        self.apply(self._routing)
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._tick()
        finally:
            await self._pool.close()

    def apply(self, routing: Routing) -> None:
        """Apply a routing table: connect to new replicas, update states, drop those that it does not list."""
        self._routing = routing
        self._pool.apply(routing.replicas)
        self._place_waiting()

    def submit(
        self, requests: Sequence[Work], fallbacks: Sequence[str] = (), *, shadow: bool = False
    ) -> RequestHandle:
        """Place requests, each with its version as `model`; the caller of this must close the handle."""
        now = time.monotonic()
        handle = RequestHandle(self._forget)
        for place, request in enumerate(requests):
            handle.tasks.append(EngineTask(request, handle, place, now, list(fallbacks), shadow))
        for task in handle.tasks:
            self._metrics.submitted(task)
            self._retries.add(RETRIES_PER_REQUEST)
            self._place(task)
        return handle

    def fail_all(self, code: str, message: str) -> None:
        """End all tasks with one error."""
        for handle in {task.handle for task in self._tasks}:
            handle.fail(ApiError(code, message, retry_after_s=1))

    def on_ready(self, link: EngineLink) -> None:
        self._pool.note(link)
        self._metrics.connected(link)
        self._place_waiting()

    def on_lost(self, link: EngineLink, why: Loss) -> None:
        name = link.replica.name
        if why in ("silent", "hung"):
            self.reports.suspect(name, why)
        if link.tasks:
            log.warning("lost %s (%s) with %d answers in progress", name, why, len(link.tasks))
        lost, link.tasks = list(link.tasks.values()), {}
        self._metrics.lost(link, why)
        for task in lost:
            self._move(task, why)

    def on_load(self, link: EngineLink, load: EngineLoad) -> None:
        link.memory = load.blocks / load.blocks_in_all if load.blocks_in_all else 0.0
        self._metrics.reported(link, load)

    def on_answer(self, task: EngineTask, message: AnswerMessage) -> None:
        now = time.monotonic()
        if isinstance(message, Tokens):
            self._metrics.gained(task, message, now)
            if not task.gained:
                self._grammars.note(task.request)
        task.take(message, now)
        if isinstance(message, EmbeddingVectors):
            self._end(task, finish="stop")
        elif isinstance(message, Tokens) and message.finish is not None:
            self._end(task, finish=message.finish)

    def on_failed(self, task: EngineTask, failed: Failed) -> None:
        """Refuse a wrong request; after any other failure try another replica, within the retry budget."""
        if failed.code in CODE_OF:
            self._refuse(task, ApiError(CODE_OF[failed.code], failed.message))
            return
        self.reports.ended(task, code=failed.code)
        task.avoid.add(task.replica)
        elsewhere = self._pool.candidates(task, task.version)
        if (not elsewhere and not self._fall_back(task)) or not self._retries.take(time.monotonic()):
            self._refuse(task, ApiError("engine_failed", failed.message))
        else:
            self._metrics.moved(task, failed.code)
            self._place(task)

    def _place(self, task: EngineTask) -> None:
        """Send a task to a replica; without one it waits, unless another version may answer at once."""
        links = self._pool.candidates(task, task.version)
        if not links and not task.sent and self._fall_back(task):
            links = self._pool.candidates(task, task.version)
        links = links or self._pool.leaving(task)
        if not links:
            self._tasks[task] = None
            return
        link = self._pool.choose(task, links)
        task.waited_ticks, task.gained, task.replica = 0, False, link.replica.name
        task.attempts, task.placed_at = task.attempts + 1, time.monotonic()
        task.grammar_tried = self._grammars.is_tried(task.request)
        self._tasks[task] = link
        link.submit(task)

    def _fall_back(self, task: EngineTask) -> bool:
        """Switch a task to another version with a replica, if there is one; its vocabulary is the same."""
        for version in task.fallbacks:
            if version != task.version and self._pool.candidates(task, version):
                task.request = msgspec.structs.replace(task.request, model=version)
                return True
        return False

    def _move(self, task: EngineTask, why: Loss) -> None:
        """Continue a task whose replica was lost at another one."""
        self.reports.ended(task, code="lost")
        if not task.gained:
            task.fruitless += why == "ended" and time.monotonic() - task.placed_at < BLAME_S
            task.idle_moves += 1
        if task.fruitless >= MAX_FRUITLESS:
            text = f"{task.fruitless} engines crashed when they started this request; it is not retried"
            self._refuse(task, ApiError("poisonous", text))
        elif task.idle_moves > FREE_MOVES and not self._retries.take(time.monotonic()):
            self._refuse(task, _unavailable("engines crash too often; try again shortly"))
        else:
            self._metrics.moved(task, why)
            self._place(task)

    def _place_waiting(self) -> None:
        for task in [task for task, link in self._tasks.items() if link is None]:
            self._place(task)

    def _tick(self) -> None:
        """Check the links, and refuse what has waited too long for one.

        Waiting is counted in ticks, not in time: a gateway that was suspended has not looked for a replica.
        """
        for link in self._pool:
            link.tick()
        for task in [task for task, link in self._tasks.items() if link is None]:
            task.waited_ticks += 1
            if task.waited_ticks * TICK_S < self._patience_s:
                continue
            if self._fall_back(task):
                self._place(task)
            else:
                self._refuse(task, _unavailable("no engine connected in time; try again shortly"))

    def _refuse(self, task: EngineTask, error: ApiError) -> None:
        self._end(task, code=error.code if error.status >= 500 else None)
        task.handle.fail(error)

    def _end(self, task: EngineTask, *, code: str | None = "", finish: str = "") -> None:
        """Remove a task; with code None (a client's mistake) it is not reported as an outcome."""
        if task.ended:
            return
        task.ended = True
        self._tasks.pop(task, None)
        self._metrics.ended(task, finish, time.monotonic())
        if code is not None:
            self.reports.ended(task, code=code, finish=finish)

    def _forget(self, task: EngineTask) -> None:
        """Cancel a task that its handle no longer wants."""
        if task.ended:
            return
        link = self._tasks.get(task)
        if link is not None:
            link.drop(task)
        self._end(task, finish="cancelled")


def _unavailable(message: str) -> ApiError:
    return ApiError("engine_unavailable", message, retry_after_s=1)
