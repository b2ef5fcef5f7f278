"""Who takes part in an elastic run, as its coordinator knows it from what it heard and when.

Only facts live here; membership.py decides what they mean.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.plan.stragglers import Total
from windlass.spec.protocol.elastic import Heartbeat, WaitingForAssignment

Stage = Literal["idle", "running", "gathering"]
"""No generation; one that trains or forms; one whose members are on their way to the lobby."""

PACES_KEPT = 32
TOTALS_KEPT = 128
"""Longer than the paces: stalls count only when there are many of them."""
SETTLING = ("starting", "lobby", "forming")
"""Phases in which a worker's step is not that of the generation."""
GAP_KEPT = 0.95
"""Of the widest gap between two beats, at each further beat: half of it is forgotten in three seconds."""


@dataclass
class WorkerState:
    """A process that trains, may train, or is being started."""

    worker: str
    node: str
    since_s: float
    """When it was asked for or first heard of."""
    heard_s: float
    pid: int = 0
    store: str = ""
    connected: bool = False
    expected: bool = False
    """A member of a generation that an earlier coordinator formed, and that was not heard yet."""
    ready_s: float | None = None
    """Since when it is in the lobby."""
    why: str = ""
    generation: int | None = None
    step: int = 0
    phase: str = "starting"
    gap_s: float = 0.0
    """The widest recent gap between two beats."""
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    """Recent compute seconds per sequence."""
    totals: deque[Total] = field(default_factory=lambda: deque(maxlen=TOTALS_KEPT))
    rank: int | None = None
    assigned: int | None = None
    """The generation that this coordinator assigned to it."""
    cut: bool = False
    """Its connection was closed."""
    exit: str | None = None
    """How its process ended, once it did."""
    outcome: str | None = None
    done_s: float = 0.0
    error: dict[str, Any] | None = None
    dismissed: bool = False
    slow: bool = False
    """Far too slow to take part."""

    @property
    def ready(self) -> bool:
        """Whether it waits for an assignment."""
        return self.connected and not self.over and self.ready_s is not None

    @property
    def over(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.dismissed or self.outcome is not None

    def beat(self, beat: Heartbeat, now_s: float) -> bool:
        """Take a beat; return whether it shows that something got on."""
        self.gap_s = max(now_s - self.heard_s, self.gap_s * GAP_KEPT)
        self.heard_s = now_s
        moved = (self.generation, self.step, self.phase) != (beat.generation, beat.step, beat.phase)
        if beat.busy_s is not None and self.step != beat.step:
            self.paces.append(beat.busy_s)
            if beat.steps:
                self.totals.append(Total(beat.total_s, beat.steps))
        self.generation, self.step, self.phase = beat.generation, beat.step, beat.phase
        return moved

    def come(self, lobby: WaitingForAssignment, now_s: float) -> None:
        """Take note that it waits in the lobby; not if it said so before it heard of its assignment."""
        if self.assigned is not None and lobby.generation != self.assigned:
            return
        self.generation, self.step, self.why, self.phase = lobby.generation, lobby.step, lobby.why, "lobby"
        self.heard_s = now_s
        self.ready_s = now_s if self.ready_s is None else self.ready_s

    def go(self, rank: int | None, generation: int) -> None:
        """Take note of its place in a generation, None beside it."""
        self.rank = rank
        if rank is not None:
            self.assigned = generation
            self.ready_s, self.phase, self.why = None, "forming", ""
            self.paces.clear()
            self.totals.clear()


@dataclass
class AgentState:
    """The launcher of one machine."""

    node: str
    host: str
    most: int = 0


@dataclass
class MembershipState:
    """Everything a decision needs."""

    wanted: int
    spares: int
    home: str
    """The node of the coordinator."""
    since_s: float
    """When the stage began."""
    stage: Stage = "idle"
    workers: dict[str, WorkerState] = field(default_factory=dict)
    agents: dict[str, AgentState] = field(default_factory=dict)
    nodes: int = 1
    """How many machines there are when all are there."""
    generation: int = 0
    members: tuple[str, ...] = ()
    """Of the generation, by rank; those that are lost stay named."""
    layout: dict[str, Any] = field(default_factory=dict)
    shares: dict[str, int] | None = None
    """Sequences of each member, where they are not equal."""
    next_shares: dict[str, int] | None = None
    """The same for the next generation, if it has the same members."""
    slow_nodes: Counter[str] = field(default_factory=Counter)
    """How many workers of a node were too slow."""
    broken: str | None = None
    """Why the generation cannot go on."""
    reason: str = ""
    """Why the next generation will form."""
    abandoned: bool = False
    kept: bool = False
    """While idle: members of the last generation are here, with its state."""
    stops: int = 0
    """How often somebody asked for the end."""
    called_stop: bool = False
    step: int = 0
    moved_s: float = 0.0
    """When a member last got on."""
    stepped_s: float | None = None
    """When `step` was reached; None before members of the generation hold state."""
    progressed: bool = False
    """Whether the generation did a step."""
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    """Recent seconds per step."""
    early: int = 0
    """Workers that died soon after their start, one after the other, without progress of the run."""
    last_words: str = ""
    """Of the worker that died last."""
    start_after_s: float = float("-inf")
    fruitless: int = 0
    """Generations in a row that ended before a step."""
    form_after_s: float = float("-inf")

    @property
    def stop(self) -> bool:
        return self.stops > 0

    @property
    def crew(self) -> list[WorkerState]:
        """The members that are not lost, by rank."""
        return [self.workers[m] for m in self.members if m in self.workers]

    @property
    def ready(self) -> list[WorkerState]:
        """Who waits in the lobby: members by rank, then the others by age."""
        found = [w for w in self.workers.values() if w.ready and not w.slow]
        return sorted(found, key=lambda w: (w.rank is None, w.rank or 0, w.since_s, w.worker))

    @property
    def newcomers(self) -> list[WorkerState]:
        return [w for w in self.ready if w.worker not in self.members]

    @property
    def alive(self) -> list[WorkerState]:
        return [w for w in self.workers.values() if not w.over]

    @property
    def awaited(self) -> bool:
        """Whether members that an earlier coordinator left were not heard yet."""
        return any(w.expected for w in self.workers.values())

    def back(self, worker: WorkerState) -> bool:
        """Whether a member came to the lobby from this generation, not on its way into it."""
        return worker.ready and worker.generation == self.generation

    def get_on(self, now_s: float) -> None:
        """Take note that a member got on. Steps beyond the first one seen in a generation are progress."""
        self.moved_s = now_s
        steps = [w.step for w in self.crew if w.generation == self.generation and w.phase not in SETTLING]
        highest = max(steps, default=0)
        if self.stepped_s is not None and highest > self.step:
            self.step_s.append((now_s - self.stepped_s) / (highest - self.step))
            self.early, self.fruitless, self.progressed = 0, 0, True
        if steps and (self.stepped_s is None or highest > self.step):
            self.step, self.stepped_s = highest, now_s

    def turn(self, stage: Stage, now_s: float) -> None:
        self.stage, self.since_s, self.moved_s = stage, now_s, now_s

    def forgive(self, seconds: float) -> None:
        """Move the past: who was asleep itself cannot call others silent."""
        self.since_s += seconds
        self.moved_s += seconds
        for worker in self.workers.values():
            worker.heard_s += seconds
            worker.since_s += seconds


def listed(workers: Iterable[WorkerState]) -> str:
    """Name workers for people."""
    return ", ".join(w.worker for w in workers)
