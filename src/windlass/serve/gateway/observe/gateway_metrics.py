"""The figures of /metrics: what they are called, and where they are counted.

Names are those that the field knows from vLLM and OpenTelemetry, with `windlass_` in front; docs/service.md
has the table. Labels have few values: a route is its template, never the path that was asked for; a model
is a version that is served. Figures with a tenant are counted only if that was asked for.
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
"""For what the gateway itself takes: its work before the engine is asked, and the lag of its event loop."""


class Metrics:
    """All figures of one gateway; with a folder, /metrics tells those of its siblings too."""

    def __init__(self, folder: Path | None = None, *, tenants: bool = False) -> None:
        self.board = board = MetricsRegistry(folder)
        self._models: dict[str, ModelFigures] = {}
        self._replicas: dict[str, ReplicaFigures] = {}
        self._count_http(board)
        self._count_answers(board)
        self._count_replicas(board)
        self._count_gateway(board)
        self._tenants = (
            board.counters("windlass_tenant_tokens", "Tokens read and written for a tenant", ("tenant",))
            if tenants
            else None
        )

    def model(self, name: str) -> ModelFigures:
        """Return the figures of a version; whoever counts keeps them at hand."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelFigures(self, name)
        return found

    def replica(self, name: str) -> ReplicaFigures:
        found = self._replicas.get(name)
        if found is None:
            found = self._replicas[name] = ReplicaFigures(self, name)
        return found

    def forget(self, replica: str) -> None:
        """Tell nothing more of a replica that is wanted no more; its name never comes again."""
        self._replicas.pop(replica, None)
        for family in (self.connected, self.running, self.waiting, self.kv_usage):
            family.drop(replica)
        for sums in (self.steps, self.busy_s):
            sums.drop(replica)

    def used(self, tenant: str, tokens: int) -> None:
        """Count what a tenant used, where tenants are counted at all."""
        if self._tenants is not None:
            self._tenants.labels(tenant).inc(tokens)

    def text(self, tenant: str = "") -> bytes:
        """Return everything as Prometheus reads it; for a tenant, what is counted of that one alone.

        A tenant called as the sum of those beyond the first MAX_SERIES is told nothing.
        """
        if tenant == OTHER:
            return b""
        return self.board.text({"tenant": tenant} if tenant else None)

    def _count_http(self, board: MetricsRegistry) -> None:
        self.requests = board.counters(
            "windlass_http_requests", "Requests answered, by route and status", ("route", "status")
        )
        self.request_s = board.histograms(
            "windlass_http_request_duration_seconds",
            "Time from the request's head to the answer's end",
            ("route",),
            REQUEST_S,
        )
        self.errors = board.counters(
            "windlass_request_errors", "Requests that failed, by the code of the error envelope", ("code",)
        )
        self.refused = board.counters(
            "windlass_requests_refused", "Requests that a limit refused, by the limit", ("limit",)
        )
        self.cancelled = board.counter(
            "windlass_requests_cancelled", "Answers that were given up before their end"
        )

    def _count_answers(self, board: MetricsRegistry) -> None:
        by_model = ("model",)
        self.first_token_s = board.histograms(
            "windlass_time_to_first_token_seconds",
            "Time from the engine being asked to the first token of an answer",
            by_model,
            FIRST_TOKEN_S,
        )
        self.inter_token_s = board.histograms(
            "windlass_inter_token_latency_seconds",
            "Time between tokens of one answer",
            by_model,
            BETWEEN_TOKENS_S,
        )
        self.latency_s = board.histograms(
            "windlass_e2e_request_latency_seconds",
            "Time from the engine being asked to the end of an answer",
            by_model,
            REQUEST_S,
        )
        self.queue_s = board.histograms(
            "windlass_request_queue_time_seconds",
            "Time that an answer waited in the engine for a slot",
            by_model,
            FIRST_TOKEN_S,
        )
        self.prompt_tokens = board.counters("windlass_prompt_tokens", "Tokens read", by_model)
        self.generation_tokens = board.counters("windlass_generation_tokens", "Tokens written", by_model)
        self.finished = board.counters(
            "windlass_request_success",
            "Answers that came to their end, by the reason",
            ("model", "finished_reason"),
        )
        self.in_flight = board.gauge("windlass_num_requests_in_flight", "Answers that engines were asked for")

    def _count_replicas(self, board: MetricsRegistry) -> None:
        told = ("replica",)
        self.connected = board.gauges(
            "windlass_replica_connected", "1 while a replica is connected", told, "max"
        )
        self.running = board.gauges("windlass_num_requests_running", "Requests that hold a slot", told, "max")
        self.waiting = board.gauges(
            "windlass_num_requests_waiting", "Requests that wait for a slot", told, "max"
        )
        self.kv_usage = board.gauges(
            "windlass_kv_cache_usage_ratio", "Part of the blocks of keys and values in use", told, "max"
        )
        self.steps = board.counters("windlass_engine_steps", "Steps of an engine", told, "max")
        self.busy_s = board.counters(
            "windlass_engine_busy_seconds", "Time an engine spent in steps", told, "max"
        )
        self.retries = board.counters(
            "windlass_request_retries",
            "Requests sent to another replica before their first token",
            ("cause",),
        )
        self.failovers = board.counters(
            "windlass_request_failovers", "Answers that another replica went on with", ("cause",)
        )
        self.failover_gap_s = board.histogram(
            "windlass_failover_gap_seconds",
            "Time without tokens while an answer changed its replica",
            FIRST_TOKEN_S,
        )
        self.standby = board.counters(
            "windlass_standby_answers", "Answers of a standby in place of the wanted version", ("model",)
        )

    def _count_gateway(self, board: MetricsRegistry) -> None:
        self.gateways = board.gauge("windlass_gateways", "Gateway processes that live")
        self.gateways.set(1)
        self.connections = board.gauge("windlass_connections_open", "Connections of clients")
        self.brownout = board.gauge(
            "windlass_brownout_level", "Step of the brown-out ladder in force; 0 is full service", "max"
        )
        self.overhead_s = board.histogram(
            "windlass_gateway_overhead_seconds",
            "Time that the gateway itself took before an engine was asked",
            OWN_S,
        )
        self.loop_lag_s = board.histogram(
            "windlass_event_loop_lag_seconds", "How late the gateway's event loop ran a timer", OWN_S
        )


class ModelFigures:
    """What is counted of the answers of one version."""

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
        """Count the first frame of an answer."""
        self.first_token_s.observe(waited_s)
        self.queue_s.observe(queued_s)
        self.generation_tokens.inc(tokens)

    def more(self, tokens: int, waited_s: float) -> None:
        """Count a later frame: its tokens came `waited_s` after those before them."""
        self.inter_token_s.observe(waited_s / tokens, tokens)
        self.generation_tokens.inc(tokens)

    def end(self, finish: str, lasted_s: float) -> None:
        """Count an answer that came to its end."""
        self.latency_s.observe(lasted_s)
        self._finished.labels(self._name, finish).inc()


class ReplicaFigures:
    """What a replica says of itself; every gateway hears the same."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.connected: Gauge = metrics.connected.labels(name)
        self._running, self._waiting = metrics.running.labels(name), metrics.waiting.labels(name)
        self._kv_usage = metrics.kv_usage.labels(name)
        self._steps, self._busy_s = metrics.steps.labels(name), metrics.busy_s.labels(name)
        self._before = EngineLoad(0, 0, 0, 0, 0.0)

    def tell(self, load: EngineLoad) -> None:
        """Take what the engine reported; its sums begin again when it is started again."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._kv_usage.set(load.blocks / load.blocks_in_all if load.blocks_in_all else 0.0)
        self._steps.inc(load.steps - (self._before.steps if load.steps >= self._before.steps else 0))
        self._busy_s.inc(load.busy_s - (self._before.busy_s if load.busy_s >= self._before.busy_s else 0))
        self._before = load

    def gone(self) -> None:
        """Tell nothing more of it, until it comes back."""
        self.connected.set(0)
        for gauge in (self._running, self._waiting, self._kv_usage):
            gauge.clear()
