"""What a decision about the queue is made from, and what it may say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windlass.spec.cluster import Placement


@dataclass(frozen=True, slots=True)
class Room:
    """What one member needs, what a machine has free, or the most that a tenant may hold."""

    cores: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """A node that takes work. `free` is what is left beside all that is placed on it now."""

    name: str
    total: Room
    free: Room
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that wants to run: a gang of `members` equal processes, all or none."""

    key: str
    """TENANT/NAME, as in cluster.backend."""
    tenant: str
    members: int
    need: Room
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


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that was admitted and has not left its machines."""

    ask: Ask
    members: int
    nodes: tuple[str, ...] = ()
    """Where its members are; empty while the backend has not said so. Its room is then still in `free`."""
    since_s: float = 0.0
    saved_s: float | None = None
    """When it last saved a checkpoint; what came after it would be lost without a save."""
    leaving: bool = False
    """It was asked to make room and has not gone yet."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant may have: a weight beside the others, and the most at once."""

    tenant: str
    weight: float = 1.0
    quota: Room | None = None
    most_jobs: int | None = None
    """At once."""
    used: float = 0.0
    """What it had lately, in dominant-share seconds that fade with time."""


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision may depend on. A tenant without a share has the default one."""

    now_s: float
    machines: Sequence[Machine]
    waiting: Sequence[Ask]
    placed: Sequence[Placed]
    shares: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one job, with the reason in plain words, which its owner reads.

    admit: launch it with `members`. preempt: let it save and go back to the queue, for the job `other`.
    resize: an elastic job goes on with `members`. hold: it waits on.
    """

    key: str
    what: Literal["admit", "preempt", "resize", "hold"]
    reason: str
    members: int = 0
    other: str = ""
