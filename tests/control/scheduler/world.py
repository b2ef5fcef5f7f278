"""A few machines that do what is decided: who starts starts at once, who leaves leaves a step later."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from windlass.control.scheduler.decide import decide
from windlass.control.scheduler.fair_share import dominant_shares, fade
from windlass.control.scheduler.snapshot import (
    JobDecision,
    MemberResources,
    PendingJob,
    RunningJob,
    SchedulableNode,
    Snapshot,
    TenantQuota,
)

CORE = MemberResources(1.0)
_numbers = itertools.count()


def ask(tenant: str = "a", members: int = 1, need: MemberResources = CORE, **more: object) -> PendingJob:
    key = more.pop("key", None) or f"{tenant}/job{next(_numbers):06}"
    return PendingJob(str(key), tenant, members, need, **more)  # type: ignore[arg-type]


def machines(number: int, cores: float = 4.0, **room: int) -> list[SchedulableNode]:
    total = MemberResources(cores, **room)
    return [SchedulableNode(f"m{i:03}", total, total) for i in range(number)]


def told(decisions: Sequence[JobDecision]) -> dict[str, JobDecision]:
    return {decision.key: decision for decision in decisions}


def less(room: MemberResources, need: MemberResources, times: int = 1) -> MemberResources:
    return MemberResources(
        room.cores - need.cores * times,
        room.memory_bytes - need.memory_bytes * times,
        room.gpus - need.gpus * times,
    )


def fits(machines: Sequence[SchedulableNode], ask: PendingJob) -> int:
    """Count members that fit, in plain arithmetic that shares nothing with the code under test."""
    return sum(_fits(m, ask) for m in machines)


def _fits(machine: SchedulableNode, ask: PendingJob) -> int:
    if any(machine.labels.get(key) != value for key, value in ask.node_selector.items()):
        return 0
    parts = [
        (machine.free.cores + 1e-6, ask.need.cores),
        (machine.free.memory_bytes, ask.need.memory_bytes),
        (machine.free.gpus, ask.need.gpus),
    ]
    return max(0, min((int(have // each) for have, each in parts if each > 0), default=10**6))


@dataclass
class World:
    fleet: list[SchedulableNode]
    shares: dict[str, TenantQuota] = field(default_factory=dict)
    now_s: float = 0.0
    waiting: dict[str, PendingJob] = field(default_factory=dict)
    placed: dict[str, RunningJob] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    lasting: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)

    def submit(self, ask: PendingJob, lasting_s: float = 1e9) -> PendingJob:
        ask = replace(ask, submitted_s=self.now_s)
        self.waiting[ask.key], self.lasting[ask.key] = ask, lasting_s
        return ask

    def machines(self, placed: Mapping[str, RunningJob] | None = None) -> list[SchedulableNode]:
        free = {m.name: m.free for m in self.fleet}
        for each in (self.placed if placed is None else placed).values():
            for node in each.nodes:
                free[node] = less(free[node], each.job.need)
        return [replace(m, free=free[m.name]) for m in self.fleet]

    def view(self) -> Snapshot:
        waiting, placed = list(self.waiting.values()), list(self.placed.values())
        return Snapshot(self.now_s, self.machines(), waiting, placed, self.shares)

    def step(self, passed_s: float = 60.0) -> list[JobDecision]:
        """Let time pass and those leave who are done or were asked to; then decide, and do it."""
        self._note_usage(passed_s)
        self.now_s += passed_s
        for key, each in list(self.placed.items()):
            self.placed[key] = replace(each, nodes=each.nodes[: each.members])
            if each.leaving or self.ends[key] <= self.now_s:
                del self.placed[key]
                if each.leaving:
                    self.waiting[key] = each.job
        decisions = decide(self.view())
        for decision in decisions:
            self._do(decision)
        for machine in self.machines():
            assert min(machine.free.cores + 1e-6, machine.free.memory_bytes, machine.free.gpus) >= 0
        return decisions

    def _do(self, decision: JobDecision) -> None:
        key = decision.key
        if decision.what == "admit":
            ask = self.waiting.pop(key)
            self.placed[key] = RunningJob(ask, decision.members, decision.nodes, self.now_s)
            self.began.setdefault(key, self.now_s)
            self.ends[key] = self.now_s + self.lasting[key]
        elif decision.what == "preempt":
            self.placed[key] = replace(self.placed[key], leaving=True)
        elif decision.what == "resize":
            each = self.placed[key]
            nodes = each.nodes + decision.nodes
            self.placed[key] = replace(each, members=decision.members, nodes=nodes, since_s=self.now_s)

    def _note_usage(self, passed_s: float) -> None:
        held = dominant_shares(self.view())
        for tenant, share in self.shares.items():
            self.shares[tenant] = replace(share, used=fade(share.used, held.get(tenant, 0.0), passed_s))
