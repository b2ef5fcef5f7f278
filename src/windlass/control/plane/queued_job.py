"""One job of the queue: what its owner wants, and its current phase.

    queued -> admitted -> running -> done | failed
                 |           |
                 +-----------+-> preempting -> queued
                 +-----------+-> stopping -> stopped

A job is named TENANT/NAME by its owner. Its `uid` is unique for ever: another job may get the name once this
one is over, and leftovers of the old job's processes must not be attributed to the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import msgspec

from windlass.cluster.backend import label
from windlass.control.scheduler.snapshot import MemberResources, PendingJob
from windlass.spec.cluster import Placement

Kind = Literal["train", "service"]
DesiredState = Literal["run", "stop"]
Phase = Literal["queued", "admitted", "running", "preempting", "stopping", "done", "failed", "stopped"]
OVER = frozenset(("done", "failed", "stopped"))
PLACED = frozenset(("admitted", "running", "preempting", "stopping"))
LEAVING = frozenset(("preempting", "stopping"))


@dataclass(frozen=True, slots=True)
class ResourceNeeds:
    """What a job requests from the cluster, computed once, when it is submitted."""

    members: int = 1
    cores: float = 0.0
    """Per member, like memory and GPUs."""
    memory_bytes: int = 0
    gpus: int = 0
    min_members: int | None = None
    placement: Placement = "spread"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool = True
    endless: bool = False
    """It ends only when stopped, as a service does."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def need_from(text: str) -> ResourceNeeds:
    return msgspec.json.decode(text, type=ResourceNeeds)


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as recorded. Its owner writes the first part, the leader the second."""

    uid: str
    tenant: str
    name: str
    kind: Kind
    text: str
    """The job file, or the tables of a service."""
    need: ResourceNeeds
    by: str
    submitted_s: float
    desired: DesiredState = "run"
    priority: int = 0

    phase: Phase = "queued"
    members: int = 0
    """With how many members it was admitted."""
    attempts: int = 0
    """How often it was admitted, or launched again after its processes vanished."""
    preemptions: int = 0
    reason: str = ""
    """Why it is in its phase, as a sentence."""
    since_s: float = 0.0
    """Since when it is in its phase."""
    placed_s: float | None = None
    """When it was admitted, or resized last."""
    begun_s: float | None = None
    """When it ran first."""
    ended_s: float | None = None
    version: int = 0
    """Increases with every write to any job: readers ask for what changed after a version."""

    @property
    def key(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def group(self) -> str:
        """The unique name of its group at a backend."""
        return _group_name(self.name, self.uid)

    @property
    def group_key(self) -> str:
        return f"{self.tenant}/{self.group}"

    @property
    def over(self) -> bool:
        return self.phase in OVER

    def now(self, phase: Phase, reason: str, now_s: float, **more: Any) -> JobEntry:
        """Return it in another phase."""
        ended_s = now_s if phase in OVER else None
        return replace(self, phase=phase, reason=reason, since_s=now_s, ended_s=ended_s, **more)

    def pending_job(self) -> PendingJob:
        """Return the job as input of the scheduler."""
        need = self.need
        return PendingJob(
            key=self.key,
            tenant=self.tenant,
            members=need.members,
            need=MemberResources(need.cores, need.memory_bytes, need.gpus),
            priority=self.priority,
            min_members=need.min_members,
            placement=need.placement,
            node_selector=need.node_selector,
            preemptible=need.preemptible,
            submitted_s=self.submitted_s,
            endless=need.endless,
        )

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        need = msgspec.to_builtins(self.need)
        own = (
            "uid",
            "tenant",
            "name",
            "kind",
            "by",
            "submitted_s",
            "desired",
            "priority",
            "phase",
            "members",
        )
        more = ("attempts", "preemptions", "reason", "since_s", "placed_s", "begun_s", "ended_s", "version")
        return {**{key: getattr(self, key) for key in (*own, *more)}, "group": self.group, "need": need}


@lru_cache(1 << 15)
def _group_name(name: str, uid: str) -> str:
    return label(f"{name}-{uid}".replace(".", "-").replace("_", "-"))
