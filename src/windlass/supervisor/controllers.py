"""Opens the controllers of a service: health, roll-outs, autoscaling and retention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.serve.records.state import open_state, state_url
from windlass.spec.serve import Serve
from windlass.supervisor.autoscale.autoscaler import Autoscale
from windlass.supervisor.health.monitor import HealthWatch
from windlass.supervisor.retention import Retention
from windlass.supervisor.rollout.controller import RolloutController
from windlass.supervisor.state import Controller


@contextmanager
def open_controllers(home: Path, serve: Serve) -> Iterator[list[Controller]]:
    """Open the database and yield the controllers; health comes first, so that the others see its results."""
    db = open_state(state_url(home, serve.state))
    health = HealthWatch(serve.health, db, probe_all=serve.memory is None)
    rollouts = RolloutController(home, db, serve.rollout, health)
    autoscale = [] if serve.scale is None else [Autoscale(serve.scale, slots=serve.slots)]
    retention = Retention(db, keep_audit_s=serve.privacy.keep_audit)
    try:
        yield [health, rollouts, *autoscale, retention]
    finally:
        rollouts.close()
        health.close()
        retention.close()
        db.close()
