"""What the leader knows about the workers and agents of an elastic run, and when it learnt it.

Only facts live here; `membership` decides what they mean.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.plan.stragglers import Total
from windlass.spec.protocol.elastic import Heartbeat, WaitingForAssignment

Stage = Literal["idle", "running", "gathering"]
"""No generation; one that trains or forms; one whose members are leaving it."""

PACES_KEPT = 32
TOTALS_KEPT = 128
"""More than the paces: stalls count only when there are many of them."""
SETTLING = ("starting", "waiting", "forming")
"""Phases in which a worker's step is not that of the generation."""
GAP_KEPT = 0.95
"""Decay of the widest heartbeat gap at each heartbeat: half of it is forgotten in three seconds."""


@dataclass
class WorkerState:
    """A worker process: training, waiting, or being started."""

    worker: str
    node: str
    since_s: float
    """When it was requested, or first seen."""
    last_seen_s: float
    pid: int = 0
    store: str = ""
    connected: bool = False
    expected: bool = False
    """A member of an earlier leader's generation that has not said hello yet."""
    ready_s: float | None = None
    """Since when it waits for an assignment."""
    why: str = ""
    generation: int | None = None
    step: int = 0
    phase: str = "starting"
    gap_s: float = 0.0
    """The widest recent gap between two heartbeats."""
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    """Recent compute seconds per sequence."""
    totals: deque[Total] = field(default_factory=lambda: deque(maxlen=TOTALS_KEPT))
    rank: int | None = None
    assigned: int | None = None
    """The generation that this leader assigned to it."""
    disconnected: bool = False
    """Its connection was closed."""
    exit: str | None = None
    """How its process ended; None while it runs."""
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
        """Whether it was dismissed or has an outcome."""
        return self.dismissed or self.outcome is not None

    def on_heartbeat(self, beat: Heartbeat, now_s: float) -> bool:
        """Apply a heartbeat; return whether it shows progress."""
        self.gap_s = max(now_s - self.last_seen_s, self.gap_s * GAP_KEPT)
        self.last_seen_s = now_s
        moved = (self.generation, self.step, self.phase) != (beat.generation, beat.step, beat.phase)
        if beat.busy_s is not None and self.step != beat.step:
            self.paces.append(beat.busy_s)
            if beat.steps:
                self.totals.append(Total(beat.total_s, beat.steps))
        self.generation, self.step, self.phase = beat.generation, beat.step, beat.phase
        return moved

    def mark_waiting(self, waiting: WaitingForAssignment, now_s: float) -> None:
        """Mark the worker as waiting, unless it sent this before it received its current assignment."""
        if self.assigned is not None and waiting.generation != self.assigned:
            return
        self.generation, self.step, self.why = waiting.generation, waiting.step, waiting.why
        self.phase = "waiting"
        self.last_seen_s = now_s
        self.ready_s = now_s if self.ready_s is None else self.ready_s

    def assign(self, rank: int | None, generation: int) -> None:
        """Set its rank in a generation; None for a worker that is not a member."""
        self.rank = rank
        if rank is not None:
            self.assigned = generation
            self.ready_s, self.phase, self.why = None, "forming", ""
            self.paces.clear()
            self.totals.clear()


@dataclass
class AgentState:
    """The agent of one machine."""

    node: str
    host: str
    max_workers: int = 0


@dataclass
class MembershipState:
    """All facts that `membership` decides by."""

    wanted: int
    spares: int
    home: str
    """The node of the leader."""
    since_s: float
    """When the stage began."""
    stage: Stage = "idle"
    workers: dict[str, WorkerState] = field(default_factory=dict)
    agents: dict[str, AgentState] = field(default_factory=dict)
    nodes: int = 1
    """Number of machines when all are connected."""
    generation: int = 0
    members: tuple[str, ...] = ()
    """Members of the generation by rank, lost ones included."""
    layout: dict[str, Any] = field(default_factory=dict)
    shares: dict[str, int] | None = None
    """Sequences of each member, where they are not equal."""
    next_shares: dict[str, int] | None = None
    """Shares of the next generation, if it has the same members."""
    slow_nodes: Counter[str] = field(default_factory=Counter)
    """Number of workers of a node that were too slow."""
    broken: str | None = None
    """Why the generation cannot continue."""
    reason: str = ""
    """Why the next generation will form."""
    abandoned: bool = False
    kept: bool = False
    """While idle: members of the last generation are connected and hold its state."""
    stops: int = 0
    """Number of stop requests."""
    called_stop: bool = False
    step: int = 0
    moved_s: float = 0.0
    """When a member last made progress."""
    stepped_s: float | None = None
    """When `step` was reached; None before members of the generation hold state."""
    progressed: bool = False
    """Whether the generation completed a step."""
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    """Recent seconds per step."""
    early: int = 0
    """Workers in a row that died soon after their start, without progress of the run between."""
    last_words: str = ""
    """Exit cause and log tail of the worker that died last."""
    start_after_s: float = float("-inf")
    fruitless: int = 0
    """Generations in a row that ended before a step."""
    form_after_s: float = float("-inf")

    @property
    def stop(self) -> bool:
        return self.stops > 0

    @property
    def live_members(self) -> list[WorkerState]:
        """The members that are not lost, by rank."""
        return [self.workers[m] for m in self.members if m in self.workers]

    @property
    def ready(self) -> list[WorkerState]:
        """Waiting workers: members by rank, then the others by age."""
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
        """Whether members of an earlier leader's generation have not said hello yet."""
        return any(w.expected for w in self.workers.values())

    def has_drained(self, worker: WorkerState) -> bool:
        """Whether a member has left this generation and waits, as opposed to not having entered it yet."""
        return worker.ready and worker.generation == self.generation

    def note_progress(self, now_s: float) -> None:
        """Record that a member made progress. Steps after the first one seen in a generation count."""
        self.moved_s = now_s
        steps = [
            w.step for w in self.live_members if w.generation == self.generation and w.phase not in SETTLING
        ]
        highest = max(steps, default=0)
        if self.stepped_s is not None and highest > self.step:
            self.step_s.append((now_s - self.stepped_s) / (highest - self.step))
            self.early, self.fruitless, self.progressed = 0, 0, True
        if steps and (self.stepped_s is None or highest > self.step):
            self.step, self.stepped_s = highest, now_s

    def enter_stage(self, stage: Stage, now_s: float) -> None:
        self.stage, self.since_s, self.moved_s = stage, now_s, now_s

    def shift_clock(self, seconds: float) -> None:
        """Shift all times: while this process was frozen it could not hear the workers."""
        self.since_s += seconds
        self.moved_s += seconds
        for worker in self.workers.values():
            worker.last_seen_s += seconds
            worker.since_s += seconds


def listed(workers: Iterable[WorkerState]) -> str:
    """Return the workers' names for a message."""
    return ", ".join(w.worker for w in workers)
