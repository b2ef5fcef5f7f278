"""The state of a service as controllers see it, and the patches that they return.

The supervisor calls every controller at every step. A controller sees the whole state and changes its own
part: health marks replicas unhealthy, a roll-out changes weights, autoscaling the number of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from windlass.spec.protocol.routing import AnswerOutcome, VersionDemand
from windlass.supervisor.desired import DesiredService

Phase = Literal["starting", "ready", "unhealthy", "draining", "ended"]


@dataclass(frozen=True)
class RunningReplica:
    """One replica. Its name is never used again."""

    name: str
    version: str
    socket: Path
    process: int
    phase: Phase
    since: float
    """When it entered this phase."""
    started_at: float
    in_flight: int = 0
    why: str = ""
    """Why it is unhealthy, draining or ended."""
    drain_known_at: float | None = None
    """When all gateways knew that it drains."""


@dataclass(frozen=True)
class ServiceState:
    """The state at one step."""

    wanted: DesiredService
    replicas: tuple[RunningReplica, ...] = ()
    outcomes: tuple[AnswerOutcome, ...] = ()
    """Outcomes that gateways reported since the last step."""
    demand: Mapping[str, VersionDemand] = field(default_factory=dict)
    """Demand for each version, summed over all gateways."""
    refused: int = 0
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Versions that failed to start so often that none is started any more, and why."""

    def of(self, version: str) -> list[RunningReplica]:
        return [each for each in self.replicas if each.version == version]


@dataclass(frozen=True)
class Patch:
    """What a controller wants to change; what is left out stays as it is."""

    wanted: DesiredService | None = None
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """Replicas that become unhealthy (no requests while others are ready), and why."""
    healthy: frozenset[str] = frozenset()
    replace: Mapping[str, str] = field(default_factory=dict)
    """Replicas to kill and start again, and why."""
    brownout: int | None = None


NOTHING = Patch()


class Controller(Protocol):
    """Looks at the state of the service and returns what to change."""

    def decide(self, view: ServiceState, now: float) -> Patch: ...
