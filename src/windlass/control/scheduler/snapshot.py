"""The input of a scheduling cycle, and its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windlass.spec.cluster import Placement

MIN_RUN_S = 300.0
"""No job is preempted before it has run this long: by then it has something to save."""


@dataclass(frozen=True, slots=True)
class MemberResources:
    """What one member needs, or what a node has."""

    cores: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0
    vector: tuple[float, float, float] = field(init=False, repr=False, compare=False)
    """The three as floats; cached, because a cycle reads them for every member."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "vector", (self.cores, float(self.memory_bytes), float(self.gpus)))


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The most that a tenant may hold at once. None: no limit; 0: none of it."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None

    @property
    def limits(self) -> tuple[float | None, int | None, int | None]:
        return self.cores, self.memory_bytes, self.gpus


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    """A node that takes work. `free` is what running jobs leave unused."""

    name: str
    total: MemberResources
    free: MemberResources
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job to schedule: a gang of `members` equal processes, all or none."""

    key: str
    """TENANT/NAME, as in cluster.backend."""
    tenant: str
    members: int
    need: MemberResources
    """Of each member."""
    priority: int = 0
    min_members: int | None = None
    """The minimum for an elastic job; None: it needs all members."""
    placement: Placement = "spread"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool = True
    """Whether it can save a checkpoint and return to the queue."""
    submitted_s: float = 0.0
    """When it first entered the queue; a preempted job keeps its time."""
    endless: bool = False
    """It ends only when stopped, as a service does: its capacity never becomes free by itself."""
    kind: tuple[str, float, int, int] = field(init=False, repr=False, compare=False)
    """Its tenant and what a member needs; cached, because a cycle sums over all running jobs."""

    def __post_init__(self) -> None:
        need = self.need
        object.__setattr__(self, "kind", (self.tenant, need.cores, need.memory_bytes, need.gpus))

    @property
    def fewest(self) -> int:
        return self.members if self.min_members is None else min(self.min_members, self.members)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that was admitted and still holds its nodes."""

    job: PendingJob
    members: int
    nodes: tuple[str, ...] = ()
    """The nodes of its members, in order. Members without a node yet are left out; what they need is still in
    `free`."""
    since_s: float = 0.0
    """When it was admitted, or resized last."""
    saved_s: float | None = None
    """When it last saved a checkpoint; work since then would be lost without a save."""
    leaving: bool = False
    """It is draining: it was told to stop and still holds its nodes."""
    steady: bool = field(init=False, repr=False, compare=False)
    """Whether it has all its members, is not draining, and ends by itself; most jobs need no further look."""

    def __post_init__(self) -> None:
        job, whole = self.job, len(self.nodes) == self.members >= self.job.members
        object.__setattr__(self, "steady", whole and not self.leaving and not job.endless)


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """A tenant's weight in fair share, and its limits."""

    tenant: str
    weight: float = 1.0
    quota: QuotaLimit = QuotaLimit()
    max_jobs: int | None = None
    """Running at once."""
    max_priority: int | None = None
    """Higher priorities of its jobs are lowered to this one."""
    used: float = 0.0
    """Recent usage in dominant-share seconds, with exponential decay."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision depends on. A tenant that is not in `shares` has the default quota."""

    now_s: float
    machines: Sequence[SchedulableNode]
    waiting: Sequence[PendingJob]
    placed: Sequence[RunningJob]
    shares: Mapping[str, TenantQuota] = field(default_factory=dict)
    min_run_s: float = MIN_RUN_S


@dataclass(frozen=True, slots=True)
class JobDecision:
    """The decision about one job, with a reason that its owner reads.

    admit: launch it with `members`. preempt: it saves and returns to the queue, for the job `other`, or
    without one when it has lost nodes. resize: an elastic job continues with `members`. hold: it keeps
    waiting.
    """

    key: str
    what: Literal["admit", "preempt", "resize", "hold"]
    reason: str
    members: int = 0
    other: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes for the new members, consistent with all other decisions. A backend that places by itself may
    choose others."""
