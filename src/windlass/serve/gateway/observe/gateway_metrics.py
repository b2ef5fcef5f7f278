"""The metrics of /metrics: their names, and the objects that count them.

Names follow vLLM and OpenTelemetry, with the prefix `windlass_`; docs/service.md has the table. Labels have
few values: a route is its template, never the requested path; a model is a served version. Metrics by tenant
are counted only if they are enabled.
"""

from __future__ import annotations

from pathlib import Path

from windlass.serve.metrics.metrics_registry import MetricsRegistry
from windlass.serve.metrics.series import OTHER, Counter, Gauge, Histogram
from windlass.spec.protocol.wire import EngineLoad

FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
REQUEST_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
OWN_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
"""Buckets for the gateway's own time: before a request is sent to an engine, and the event loop's lag."""


class Metrics:
    """All metrics of one gateway; with a folder, /metrics includes those of its sibling processes."""

    def __init__(self, folder: Path | None = None, *, tenants: bool = False) -> None:
        self.registry = registry = MetricsRegistry(folder)
        self._models: dict[str, ModelMetrics] = {}
        self._replicas: dict[str, ReplicaFigures] = {}
        self._count_http(registry)
        self._count_answers(registry)
        self._count_replicas(registry)
        self._count_gateway(registry)
        self._tenants = (
            registry.counters("windlass_tenant_tokens", "Tokens read and written for a tenant", ("tenant",))
            if tenants
            else None
        )

    def model(self, name: str) -> ModelMetrics:
        """Return the metrics of a version; they are cached."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelMetrics(self, name)
        return found

    def replica(self, name: str) -> ReplicaFigures:
        found = self._replicas.get(name)
        if found is None:
            found = self._replicas[name] = ReplicaFigures(self, name)
        return found

    def forget(self, replica: str) -> None:
        """Remove the metrics of a replica that was removed; its name is never used again."""
        self._replicas.pop(replica, None)
        for family in (self.connected, self.running, self.waiting, self.kv_usage):
            family.drop(replica)
        for sums in (self.steps, self.busy_s):
            sums.drop(replica)

    def used(self, tenant: str, tokens: int) -> None:
        """Count the tokens of a tenant, if metrics by tenant are enabled."""
        if self._tenants is not None:
            self._tenants.labels(tenant).inc(tokens)

    def text(self, tenant: str = "") -> bytes:
        """Return all metrics in the Prometheus text format; for a tenant, only its own.

        A tenant whose name is that of the overflow series (OTHER) gets nothing: the series sums other
        tenants.
        """
        if tenant == OTHER:
            return b""
        return self.registry.text({"tenant": tenant} if tenant else None)

    def _count_http(self, registry: MetricsRegistry) -> None:
        self.requests = registry.counters(
            "windlass_http_requests", "Requests answered, by route and status", ("route", "status")
        )
        self.request_s = registry.histograms(
            "windlass_http_request_duration_seconds",
            "Time from the request's head to the answer's end",
            ("route",),
            REQUEST_S,
        )
        self.errors = registry.counters(
            "windlass_request_errors", "Requests that failed, by the code of the error envelope", ("code",)
        )
        self.refused = registry.counters(
            "windlass_requests_refused", "Requests that a limit refused, by the limit", ("limit",)
        )
        self.cancelled = registry.counter(
            "windlass_requests_cancelled", "Answers that were cancelled before their end"
        )

    def _count_answers(self, registry: MetricsRegistry) -> None:
        by_model = ("model",)
        self.first_token_s = registry.histograms(
            "windlass_time_to_first_token_seconds",
            "Time from sending a request to the engine to the first token of an answer",
            by_model,
            FIRST_TOKEN_S,
        )
        self.inter_token_s = registry.histograms(
            "windlass_inter_token_latency_seconds",
            "Time between tokens of one answer",
            by_model,
            BETWEEN_TOKENS_S,
        )
        self.latency_s = registry.histograms(
            "windlass_e2e_request_latency_seconds",
            "Time from sending a request to the engine to the end of an answer",
            by_model,
            REQUEST_S,
        )
        self.queue_s = registry.histograms(
            "windlass_request_queue_time_seconds",
            "Time that an answer waited in the engine for a slot",
            by_model,
            FIRST_TOKEN_S,
        )
        self.prompt_tokens = registry.counters("windlass_prompt_tokens", "Tokens read", by_model)
        self.generation_tokens = registry.counters("windlass_generation_tokens", "Tokens written", by_model)
        self.finished = registry.counters(
            "windlass_request_success",
            "Finished answers, by reason",
            ("model", "finished_reason"),
        )
        self.in_flight = registry.gauge(
            "windlass_num_requests_in_flight", "Answers in progress at the engines"
        )

    def _count_replicas(self, registry: MetricsRegistry) -> None:
        labels = ("replica",)
        self.connected = registry.gauges(
            "windlass_replica_connected", "1 while a replica is connected", labels, "max"
        )
        self.running = registry.gauges(
            "windlass_num_requests_running", "Requests that hold a slot", labels, "max"
        )
        self.waiting = registry.gauges(
            "windlass_num_requests_waiting", "Requests that wait for a slot", labels, "max"
        )
        self.kv_usage = registry.gauges(
            "windlass_kv_cache_usage_ratio", "Share of KV cache blocks in use", labels, "max"
        )
        self.steps = registry.counters("windlass_engine_steps", "Steps of an engine", labels, "max")
        self.busy_s = registry.counters(
            "windlass_engine_busy_seconds", "Time an engine spent in steps", labels, "max"
        )
        self.retries = registry.counters(
            "windlass_request_retries",
            "Requests sent to another replica before their first token",
            ("cause",),
        )
        self.failovers = registry.counters(
            "windlass_request_failovers", "Answers that another replica continued", ("cause",)
        )
        self.failover_gap_s = registry.histogram(
            "windlass_failover_gap_seconds",
            "Time without tokens while an answer changed its replica",
            FIRST_TOKEN_S,
        )
        self.standby = registry.counters(
            "windlass_standby_answers", "Answers by a standby instead of the wanted version", ("model",)
        )

    def _count_gateway(self, registry: MetricsRegistry) -> None:
        self.gateways = registry.gauge("windlass_gateways", "Running gateway processes")
        self.gateways.set(1)
        self.connections = registry.gauge("windlass_connections_open", "Open client connections")
        self.brownout = registry.gauge(
            "windlass_brownout_level", "Current brown-out level; 0 is full service", "max"
        )
        self.overhead_s = registry.histogram(
            "windlass_gateway_overhead_seconds",
            "Time that the gateway itself took before it sent a request to an engine",
            OWN_S,
        )
        self.loop_lag_s = registry.histogram(
            "windlass_event_loop_lag_seconds", "How late the gateway's event loop ran a timer", OWN_S
        )


class ModelMetrics:
    """The metrics of the answers of one version."""

    __slots__ = ("_finished", "_name", "first_token_s", "generation_tokens", "inter_token_s", "latency_s",
                 "prompt_tokens", "queue_s")  # fmt: skip

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._name, self._finished = name, metrics.finished
        self.first_token_s: Histogram = metrics.first_token_s.labels(name)
        self.inter_token_s: Histogram = metrics.inter_token_s.labels(name)
        self.latency_s: Histogram = metrics.latency_s.labels(name)
        self.queue_s: Histogram = metrics.queue_s.labels(name)
        self.prompt_tokens: Counter = metrics.prompt_tokens.labels(name)
        self.generation_tokens: Counter = metrics.generation_tokens.labels(name)

    def first(self, tokens: int, waited_s: float, queued_s: float) -> None:
        """Count the first tokens of an answer."""
        self.first_token_s.observe(waited_s)
        self.queue_s.observe(queued_s)
        self.generation_tokens.inc(tokens)

    def more(self, tokens: int, waited_s: float) -> None:
        """Count later tokens of an answer, which came `waited_s` after the previous ones."""
        self.inter_token_s.observe(waited_s / tokens, tokens)
        self.generation_tokens.inc(tokens)

    def end(self, finish: str, lasted_s: float) -> None:
        """Count a finished answer."""
        self.latency_s.observe(lasted_s)
        self._finished.labels(self._name, finish).inc()


class ReplicaFigures:
    """The metrics that a replica reports; every gateway receives the same values."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.connected: Gauge = metrics.connected.labels(name)
        self._running, self._waiting = metrics.running.labels(name), metrics.waiting.labels(name)
        self._kv_usage = metrics.kv_usage.labels(name)
        self._steps, self._busy_s = metrics.steps.labels(name), metrics.busy_s.labels(name)
        self._before = EngineLoad(0, 0, 0, 0, 0.0)

    def update(self, load: EngineLoad) -> None:
        """Take a load report; its sums restart at 0 when the engine restarts."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._kv_usage.set(load.blocks / load.blocks_in_all if load.blocks_in_all else 0.0)
        self._steps.inc(load.steps - (self._before.steps if load.steps >= self._before.steps else 0))
        self._busy_s.inc(load.busy_s - (self._before.busy_s if load.busy_s >= self._before.busy_s else 0))
        self._before = load

    def gone(self) -> None:
        """Clear the metrics until the replica connects again."""
        self.connected.set(0)
        for gauge in (self._running, self._waiting, self._kv_usage):
            gauge.clear()
