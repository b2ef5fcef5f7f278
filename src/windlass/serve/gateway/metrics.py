"""The figures of /metrics, in Prometheus' text format.

Labels have few values: a route is its template, never the path that was asked for.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
REQUEST_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


class Metrics:
    """All figures of one gateway; each gateway has a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "windlass_requests", "Requests answered", ["route", "code"], registry=registry
        )
        self.request_s = Histogram(
            "windlass_request_seconds",
            "Time from the request's head to the answer's end",
            ["route"],
            buckets=REQUEST_S,
            registry=registry,
        )
        self.first_token_s = Histogram(
            "windlass_first_token_seconds",
            "Time from the engine being asked to the first token of an answer",
            buckets=FIRST_TOKEN_S,
            registry=registry,
        )
        self.between_tokens_s = Histogram(
            "windlass_between_tokens_seconds",
            "Time between tokens of one answer",
            buckets=BETWEEN_TOKENS_S,
            registry=registry,
        )
        self.tokens = Counter("windlass_tokens", "Tokens read and written", ["kind"], registry=registry)
        self.cancelled = Counter("windlass_cancelled", "Answers given up before their end", registry=registry)
        self.in_flight = Gauge(
            "windlass_answers_in_flight", "Answers that the engine was asked for", registry=registry
        )
        self.connected = Gauge(
            "windlass_engine_connected", "1 while the engine is connected", registry=registry
        )
        self.running = Gauge("windlass_engine_running", "Requests that hold a slot", registry=registry)
        self.waiting = Gauge(
            "windlass_engine_waiting", "Requests that wait for a slot of the engine", registry=registry
        )
        self.steps = Gauge("windlass_engine_steps", "Steps of the engine since it began", registry=registry)
        self.busy_s = Gauge(
            "windlass_engine_busy_seconds", "Time the engine spent in steps since it began", registry=registry
        )

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)
