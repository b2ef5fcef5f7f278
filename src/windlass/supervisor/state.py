"""What runs, as those who decide see it, and what they may answer.

A decider is asked at every step of the supervisor. It sees the whole and changes what it is there for:
health makes replicas unwell, a roll-out changes weights, autoscaling the number of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from windlass.spec.protocol.routing import AnswerOutcome, VersionDemand
from windlass.supervisor.desired import DesiredService

Phase = Literal["starting", "ready", "unwell", "draining", "ended"]


@dataclass(frozen=True)
class RunningReplica:
    """One replica. Its name is never used again."""

    name: str
    version: str
    socket: Path
    process: int
    phase: Phase
    since: float
    """When it came into this phase."""
    started_at: float
    in_flight: int = 0
    why: str = ""
    """Why it is unwell, draining or ended."""
    shunned_since: float | None = None
    """When all gateways knew that it drains."""


@dataclass(frozen=True)
class ServiceState:
    """What is known at one step."""

    wanted: DesiredService
    replicas: tuple[RunningReplica, ...] = ()
    outcomes: tuple[AnswerOutcome, ...] = ()
    """What gateways told since the last step."""
    demand: Mapping[str, VersionDemand] = field(default_factory=dict)
    """What is asked of each version, all gateways together."""
    refused: int = 0
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Versions whose replicas died so often that none is started any more, and why."""

    def of(self, version: str) -> list[RunningReplica]:
        return [each for each in self.replicas if each.version == version]


@dataclass(frozen=True)
class Patch:
    """What a decider wants otherwise; what is left out stays as it is."""

    wanted: DesiredService | None = None
    unwell: Mapping[str, str] = field(default_factory=dict)
    """Replicas that get no requests while others are ready, and why."""
    well: frozenset[str] = frozenset()
    replace: Mapping[str, str] = field(default_factory=dict)
    """Replicas that are ended at once, to be started afresh, and why."""
    brownout: int | None = None


NOTHING = Patch()


class Controller(Protocol):
    """Looks at what runs and says what should be otherwise."""

    def decide(self, view: ServiceState, now: float) -> Patch: ...
