"""Rolls out bad and good versions under continuous traffic and counts the outcomes.

Every bad version is rolled out twice: as usual, and without the gate, so that requests and comparisons must
detect it. Good versions take turns: each replaces the other.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.lab.proofs.rollback.client_traffic import TrafficCounts, traffic
from windlass.lab.proofs.rollback.versions import NAME, STEPS, make_versions
from windlass.registry.versions import Registry, Version
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.rollouts import RolloutRecord, Rollouts
from windlass.serve.records.state import open_state
from windlass.spec.errors import ProcessFailed
from windlass.spec.rollout import HealthChecks, Rollout
from windlass.spec.serve import Serve
from windlass.store.database import sqlite_url
from windlass.supervisor.background_service import watched
from windlass.supervisor.controllers import open_controllers
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

POLICY = Rollout(seconds=1.0, requests=10, standby=1.0, patience=300.0, slower_by_s=0.001)
HEALTH = HealthChecks(every=1.0)
MAX_S = 400.0
LOOK_EVERY_S = 0.1
PROVER = Actor("", "windlass prove rollback")


@dataclass(frozen=True)
class RollbackCase:
    """One roll-out of the proof."""

    kind: str
    gate: bool
    state: str
    reason: str
    max_weight: float
    seconds: float


@dataclass
class RollbackResult:
    """The outcome of the proof."""

    cases: list[RollbackCase] = field(default_factory=list)
    tally: TrafficCounts = field(default_factory=TrafficCounts)
    seconds: float = 0.0

    def figures(self, trials: int) -> dict[str, float]:
        bad = {case.kind for case in self.cases if case.kind != "good"}
        missed = {case.kind for case in self.cases if case.kind in bad and case.state != "rolled_back"}
        good = [case for case in self.cases if case.kind == "good"]
        return {
            "bad_versions": len(bad),
            "rolled_back": len(bad - missed),
            "good_trials": trials,
            "good_promoted": sum(case.state == "promoted" for case in good),
            "failed_requests": len(self.tally.failures),
            "answered_requests": self.tally.answered,
            "seconds": round(self.seconds, 1),
        }


def prove_rollback(
    home: Path,
    say: Callable[[str], None],
    *,
    trials: int = 20,
    clients: int = 4,
    steps: int = STEPS,
    kinds: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Run the proof; its files stay in HOME/prove/rollback."""
    folder = home / "prove" / "rollback"
    folder.mkdir(parents=True, exist_ok=True)
    versions = make_versions(folder, say, steps)
    Registry(folder).promote(str(versions.good[0]))
    proof, began = RollbackResult(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="state-", dir=folder) as scratch:
        state = sqlite_url(Path(scratch) / "service.db")
        with _served(folder, state, versions.good[0]) as url, traffic(url, NAME, _texts(), clients) as tally:
            proof.tally = tally
            for kind, version in versions.bad.items():
                for gate in (True, False) if kinds is None or kind in kinds else ():
                    _try(proof, state, kind, version, gate, say)
            for trial in range(trials):
                _try(proof, state, "good", versions.good[(trial + 1) % 2], True, say)
    proof.seconds = time.monotonic() - began
    return {
        "figures": proof.figures(trials),
        "cases": [vars(case) for case in proof.cases],
        "failures": proof.tally.failures[:20],
    }


def is_taken_back(figures: dict[str, float]) -> bool:
    return (
        figures["rolled_back"] == figures["bad_versions"]
        and figures["good_promoted"] == figures["good_trials"]
        and not figures["failed_requests"]
    )


@contextmanager
def _served(home: Path, state: str, version: Version) -> Iterator[str]:
    """Serve a version with all controllers of a service; yield its URL."""
    serve = Serve(port=0, open=True, threads=1, state=state, health=HEALTH, rollout=POLICY)
    offer = ServiceSpec(str(version), version.path, serve, ("prod",))
    with (
        open_controllers(home, serve) as controllers,
        watched(Supervisor(offer, home / "logs", controllers=controllers)) as service,
    ):
        yield service.url


def _try(
    proof: RollbackResult, state: str, kind: str, version: Version, gate: bool, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    database = open_state(state)
    try:
        rollouts = Rollouts(database)
        policy = POLICY.model_copy(update={"gate": gate})
        record = rollouts.start(str(version), "canary", policy, PROVER)
        record = _ended(rollouts, record, began)
    finally:
        database.close()
    max_weight = max((float(step["weight"]) for step in record.report.get("history", [])), default=0.0)
    case = RollbackCase(
        kind, gate, record.state, record.reason, max_weight, round(time.monotonic() - began, 2)
    )
    proof.cases.append(case)
    say(f"{case.state.replace('_', ' '):12}  {kind:13}  {case.seconds:6.1f} s  {case.reason}")


def _ended(rollouts: Rollouts, record: RolloutRecord, began: float) -> RolloutRecord:
    while not record.is_ended:
        if time.monotonic() - began > MAX_S:
            raise ProcessFailed(f"roll-out {record.id} of {record.candidate} did not end: {record.reason}")
        time.sleep(LOOK_EVERY_S)
        record = rollouts.find(record.id)
    return record


def _texts() -> list[str]:
    """Return texts for prompts: the sources of this package, which always exist."""
    return [file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
