"""What a decision about the queue is made from, and what it may say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windlass.spec.cluster import Placement

MIN_RUN_S = 300.0
"""Nobody is asked to leave before it has run so long: it has something to save by then."""


@dataclass(frozen=True, slots=True)
class MemberResources:
    """What one member needs, or what a machine has."""

    cores: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0
    vector: tuple[float, float, float] = field(init=False, repr=False, compare=False)
    """The three as numbers to compute with; kept, because one decision reads them of every member."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "vector", (self.cores, float(self.memory_bytes), float(self.gpus)))


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The most that a tenant may hold at once. None: no limit; 0: nothing of it."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None

    @property
    def limits(self) -> tuple[float | None, int | None, int | None]:
        return self.cores, self.memory_bytes, self.gpus


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    """A node that takes work. `free` is what is left beside all that is placed on it now."""

    name: str
    total: MemberResources
    free: MemberResources
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that wants to run: a gang of `members` equal processes, all or none."""

    key: str
    """TENANT/NAME, as in cluster.backend."""
    tenant: str
    members: int
    need: MemberResources
    """Of each member."""
    priority: int = 0
    least: int | None = None
    """The fewest members that an elastic job can do with; None: it needs them all."""
    placement: Placement = "spread"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool = True
    """Whether it can be asked to save a checkpoint and to wait again."""
    asked_s: float = 0.0
    """When it entered the queue first; a job that was preempted keeps its time."""
    endless: bool = False
    """It ends only when it is asked to, as a service does: nobody waits for its room."""
    kind: tuple[str, float, int, int] = field(init=False, repr=False, compare=False)
    """Whose it is and what a member needs; kept, because one decision adds up all that are placed."""

    def __post_init__(self) -> None:
        need = self.need
        object.__setattr__(self, "kind", (self.tenant, need.cores, need.memory_bytes, need.gpus))

    @property
    def fewest(self) -> int:
        return self.members if self.least is None else min(self.least, self.members)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that was admitted and has not left its machines."""

    ask: PendingJob
    members: int
    nodes: tuple[str, ...] = ()
    """Where its members are, in their order; those that have no machine yet are left out, and their room is
    still in `free`."""
    since_s: float = 0.0
    """When it was admitted, or resized last."""
    saved_s: float | None = None
    """When it last saved a checkpoint; what came after it would be lost without a save."""
    leaving: bool = False
    """It was asked to make room and has not gone yet."""
    steady: bool = field(init=False, repr=False, compare=False)
    """Whether it has all that it asked for, stays, and ends by itself; kept, as most do in every decision."""

    def __post_init__(self) -> None:
        ask, whole = self.ask, len(self.nodes) == self.members >= self.ask.members
        object.__setattr__(self, "steady", whole and not self.leaving and not ask.endless)


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What a tenant may have: a weight beside the others, and the most at once."""

    tenant: str
    weight: float = 1.0
    quota: QuotaLimit = QuotaLimit()
    max_jobs: int | None = None
    """At once."""
    max_priority: int | None = None
    """Its jobs that ask for a higher priority have this one."""
    used: float = 0.0
    """What it had lately, in dominant-share seconds that fade with time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may depend on. A tenant without a share has the default one."""

    now_s: float
    machines: Sequence[SchedulableNode]
    waiting: Sequence[PendingJob]
    placed: Sequence[RunningJob]
    shares: Mapping[str, TenantQuota] = field(default_factory=dict)
    min_run_s: float = MIN_RUN_S


@dataclass(frozen=True, slots=True)
class JobDecision:
    """What is to become of one job, with the reason in plain words, which its owner reads.

    admit: launch it with `members`. preempt: let it save and go back to the queue, for the job `other`, or
    for nobody when it cannot go on where it is. resize: an elastic job goes on with `members`. hold: it
    waits on.
    """

    key: str
    what: Literal["admit", "preempt", "resize", "hold"]
    reason: str
    members: int = 0
    other: str = ""
    nodes: tuple[str, ...] = ()
    """Where members that begin fit beside everything else that was decided. A backend that places by itself
    may choose otherwise."""
