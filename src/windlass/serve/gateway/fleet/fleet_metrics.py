"""The metrics of the fleet: answers, changes of replica, replicas."""

from __future__ import annotations

import time

from windlass.serve.gateway.fleet.engine_link import EngineLink, Loss
from windlass.serve.gateway.fleet.request_handle import EngineTask
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.protocol.wire import EngineLoad, Tokens


class FleetMetrics:
    """Counts events of the fleet; shadow answers are not counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def submitted(self, task: EngineTask) -> None:
        if not task.shadow:
            self._metrics.in_flight.inc()

    def gained(self, task: EngineTask, message: Tokens, now: float) -> None:
        """Count tokens; called before the task notes them."""
        if task.shadow or not message.tokens:
            return
        figures = self._metrics.model(task.version)
        if not task.first_at:
            figures.first(len(message.tokens), now - task.submitted_at, message.queued_s)
        else:
            figures.more(len(message.tokens), now - task.last_at)
            if not task.gained:
                self._metrics.failover_gap_s.observe(now - task.last_at)

    def moved(self, task: EngineTask, cause: str) -> None:
        moves = self._metrics.failovers if task.sent else self._metrics.retries
        moves.labels(cause).inc()
        kind = "failover" if task.sent else "retry"
        task.handle.moves.append((time.monotonic(), kind, {"cause": cause, "from": task.replica}))

    def ended(self, task: EngineTask, finish: str, now: float) -> None:
        if task.shadow:
            return
        self._metrics.in_flight.dec()
        if finish == "cancelled":
            self._metrics.cancelled.inc()
        elif finish:
            self._metrics.model(task.version).end(finish, now - task.submitted_at)

    def connected(self, link: EngineLink) -> None:
        self._metrics.replica(link.replica.name).connected.set(1)

    def lost(self, link: EngineLink, why: Loss) -> None:
        if why == "removed":
            self._metrics.forget(link.replica.name)
        else:
            self._metrics.replica(link.replica.name).gone()

    def reported(self, link: EngineLink, load: EngineLoad) -> None:
        self._metrics.replica(link.replica.name).update(load)
