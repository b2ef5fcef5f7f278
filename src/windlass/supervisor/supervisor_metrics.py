"""The supervisor's metrics: how many replicas run, and how many should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from windlass.serve.metrics.metrics_registry import MetricsRegistry
from windlass.supervisor.desired import DesiredService
from windlass.supervisor.state import RunningReplica


class ServiceMetrics:
    """A registry in the gateways' metrics folder; /metrics of any gateway includes it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.registry = registry = MetricsRegistry(folder, "supervisor")
        by_model = ("model",)
        self._replicas = registry.gauges(
            "windlass_replicas", "Replicas of a version, by their state", ("model", "state")
        )
        self._wanted = registry.gauges("windlass_replicas_wanted", "Replicas that should run", by_model)
        self._weight = registry.gauges(
            "windlass_rollout_weight", "Part of the requests for its name that a version gets", by_model
        )
        self._shadow = registry.gauges(
            "windlass_rollout_shadow", "Share of requests that a version gets as copies", by_model
        )
        self._restarts = registry.counters(
            "windlass_replica_restarts", "Replicas that ended without being asked to", by_model
        )

    def update(self, running: Iterable[RunningReplica], wanted: DesiredService) -> None:
        """Set the gauges to what runs and what should run; versions that are neither are not reported."""
        for family in (self._replicas, self._wanted, self._weight, self._shadow):
            family.clear()
        for (version, phase), count in Counter((each.version, each.phase) for each in running).items():
            self._replicas.labels(version, phase).set(count)
        for group in wanted.groups:
            self._wanted.labels(group.version).set(group.replicas)
            self._weight.labels(group.version).set(group.weight)
            self._shadow.labels(group.version).set(group.shadow)

    def ended(self, version: str) -> None:
        """Count a replica that ended by itself."""
        self._restarts.labels(version).inc()
