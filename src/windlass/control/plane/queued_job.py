"""One job of the queue: what its owner wants, and what has become of it.

    queued -> admitted -> running -> done | failed
                 |           |
                 +-----------+-> preempting -> queued
                 +-----------+-> stopping -> stopped

A job is named TENANT/NAME by its owner. Its `uid` is its own for ever: another job may have the name once
this one is over, and what processes leave behind must never be taken for that one's.
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
    """What a job asks of the cluster, worked out once, when it is submitted."""

    members: int = 1
    cores: float = 0.0
    """Of each member, as the others."""
    memory_bytes: int = 0
    gpus: int = 0
    least: int | None = None
    placement: Placement = "spread"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool = True
    endless: bool = False
    """It ends only when it is asked to, as a service does."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def need_from(text: str) -> ResourceNeeds:
    return msgspec.json.decode(text, type=ResourceNeeds)


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as it is recorded. Its owner writes the first part, whoever leads the second."""

    uid: str
    tenant: str
    name: str
    kind: Kind
    text: str
    """The job file, or the tables of a service."""
    need: ResourceNeeds
    by: str
    asked_s: float
    wish: DesiredState = "run"
    priority: int = 0

    phase: Phase = "queued"
    members: int = 0
    """How many it was admitted with."""
    attempts: int = 0
    """How often it was admitted, or launched again after its processes were gone."""
    preemptions: int = 0
    reason: str = ""
    """Why it is in its phase, in plain words."""
    since_s: float = 0.0
    """Since when it is in its phase."""
    placed_s: float | None = None
    """When it was admitted, or resized last."""
    begun_s: float | None = None
    """When it ran first."""
    ended_s: float | None = None
    version: int = 0
    """Grows with every write to any job: who knows all up to one reads what came after it."""

    @property
    def key(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def group(self) -> str:
        """The name of its group at a backend: this job's alone."""
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

    def ask(self) -> PendingJob:
        """Return it as a decision about the queue sees it."""
        need = self.need
        return PendingJob(
            key=self.key,
            tenant=self.tenant,
            members=need.members,
            need=MemberResources(need.cores, need.memory_bytes, need.gpus),
            priority=self.priority,
            least=need.least,
            placement=need.placement,
            node_selector=need.node_selector,
            preemptible=need.preemptible,
            asked_s=self.asked_s,
            endless=need.endless,
        )

    def facts(self) -> dict[str, Any]:
        """Return it for a script."""
        need = msgspec.to_builtins(self.need)
        own = ("uid", "tenant", "name", "kind", "by", "asked_s", "wish", "priority", "phase", "members")
        more = ("attempts", "preemptions", "reason", "since_s", "placed_s", "begun_s", "ended_s", "version")
        return {**{key: getattr(self, key) for key in (*own, *more)}, "group": self.group, "need": need}


@lru_cache(1 << 15)
def _group_name(name: str, uid: str) -> str:
    return label(f"{name}-{uid}".replace(".", "-").replace("_", "-"))
