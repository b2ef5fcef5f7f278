"""Records finished requests: metrics, a line of the access log, an OpenTelemetry trace."""

from __future__ import annotations

import time

from windlass.serve.gateway.observe.access_log import AccessLog
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.serve.gateway.observe.traces import Traces


class RequestObserver:
    """Records every request when it has ended."""

    def __init__(
        self, metrics: Metrics, access_log: AccessLog | None = None, traces: Traces | None = None
    ) -> None:
        self._metrics, self._access_log, self._traces = metrics, access_log, traces

    def record(self, trace: RequestTrace) -> None:
        now, metrics = time.monotonic(), self._metrics
        metrics.requests.labels(trace.route, str(trace.status)).inc()
        metrics.request_s.labels(trace.route).observe(now - trace.began_at)
        if trace.code:
            metrics.errors.labels(trace.code).inc()
        if trace.submitted_at:
            metrics.overhead_s.observe(trace.own_s(trace.submitted_at))
            if trace.standby:
                metrics.standby.labels(trace.model).inc()
            metrics.used(trace.tenant, trace.prompt_tokens + trace.tokens)
        if self._access_log is not None:
            self._access_log.write(trace, now)
        if self._traces is not None:
            self._traces.put(trace, now)

    def close(self) -> None:
        if self._access_log is not None:
            self._access_log.close()
        if self._traces is not None:
            self._traces.close()
