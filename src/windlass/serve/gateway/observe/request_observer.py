"""What is made of a finished journey: counts, a line of the access log, a trace."""

from __future__ import annotations

import time

from windlass.serve.gateway.observe.access_log import AccessLog
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.serve.gateway.observe.traces import Traces


class RequestObserver:
    """Sees every request at its end."""

    def __init__(
        self, metrics: Metrics, access_log: AccessLog | None = None, traces: Traces | None = None
    ) -> None:
        self._metrics, self._access_log, self._traces = metrics, access_log, traces

    def see(self, journey: RequestTrace) -> None:
        now, metrics = time.monotonic(), self._metrics
        metrics.requests.labels(journey.route, str(journey.status)).inc()
        metrics.request_s.labels(journey.route).observe(now - journey.began_at)
        if journey.code:
            metrics.errors.labels(journey.code).inc()
        if journey.asked_at:
            metrics.overhead_s.observe(journey.own_s(journey.asked_at))
            if journey.standby:
                metrics.standby.labels(journey.model).inc()
            metrics.used(journey.tenant, journey.prompt_tokens + journey.tokens)
        if self._access_log is not None:
            self._access_log.write(journey, now)
        if self._traces is not None:
            self._traces.put(journey, now)

    def close(self) -> None:
        if self._access_log is not None:
            self._access_log.close()
        if self._traces is not None:
            self._traces.close()
