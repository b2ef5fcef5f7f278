"""Messages between the processes of an elastic run, sent over `spec.protocol.link`.

    worker -> coordinator   ElasticHello, WaitingForAssignment, Heartbeat, RunEvent, WorkerDone
    agent -> coordinator    ElasticHello, Started, Exited, StopRequest
    coordinator -> worker   Assign, DrainAtStep, AbortGeneration, Shutdown, Heartbeat
    coordinator -> agent    Start, KillWorker, RunEvent, RunEnded, Heartbeat

On the wire a message is one object under its name, `{"drain": {"epoch": 3, "generation": 7}}`. Every message
of a coordinator carries its epoch, so that receivers can ignore an earlier coordinator that does not know yet
that it was replaced.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

COORDINATOR = "coordinator"
"""Folder in the run's directory: the leader's lease, and how the run ended."""
OVER = f"{COORDINATOR}/over.json"
MEMBERS = "members.json"
WORKERS = "workers.json"
BEAT_S = 0.2
"""Seconds between two heartbeats of a worker."""


@dataclass(frozen=True)
class ElasticHello:
    """Identifies the sender; first on every connection. An idle worker sends WaitingForAssignment next."""

    NAME: ClassVar = "hello"
    role: str
    node: str
    worker: str = ""
    pid: int = 0
    host: str = ""
    store: str = ""
    """Of a worker: the "host:port" at which it listens if it becomes rank 0."""
    generation: int | None = None
    step: int = 0
    version: str = ""
    max_workers: int = 0
    """Of an agent: the maximum number of workers on its machine, 0 for no limit."""
    workers: dict[str, int] = field(default_factory=dict)
    """Of an agent: the workers that run there, with their process ids."""


@dataclass(frozen=True)
class WaitingForAssignment:
    """The worker's main thread waits for an assignment. `why`: "new", "drain", or the reason of a failure."""

    NAME: ClassVar = "waiting"
    generation: int | None
    step: int
    why: str


@dataclass(frozen=True)
class Heartbeat:
    """The sender is alive. A worker adds its progress, a coordinator its epoch."""

    NAME: ClassVar = "heartbeat"
    generation: int | None = None
    step: int = 0
    busy_s: float | None = None
    """Own compute seconds per sequence and step, the median since the last heartbeat."""
    total_s: float = 0.0
    """The sum of the same over `steps`: the median hides a single stalled step."""
    steps: int = 0
    phase: str = "step"
    """step, forming, saving, evaluating, paused or waiting."""
    epoch: int = 0


@dataclass(frozen=True)
class RunEvent:
    """An event for the journal and for clients that follow the run."""

    NAME: ClassVar = "event"
    event: dict[str, Any]
    epoch: int = 0


@dataclass(frozen=True)
class WorkerDone:
    """A worker's last message: finished, stopped, left (it alone; it is to be replaced) or failed."""

    NAME: ClassVar = "done"
    outcome: str
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Started:
    """An agent started a worker."""

    NAME: ClassVar = "started"
    worker: str
    pid: int


@dataclass(frozen=True)
class Exited:
    """A worker's process is gone; its exit code where it is known."""

    NAME: ClassVar = "exited"
    worker: str
    code: int | None
    tail: str = ""


@dataclass(frozen=True)
class StopRequest:
    """A user asked at an agent's terminal for the end of the run."""

    NAME: ClassVar = "stop_request"


@dataclass(frozen=True)
class Assign:
    """Train generation `generation` as `rank` of `world`."""

    NAME: ClassVar = "assign"
    epoch: int
    generation: int
    rank: int
    world: int
    layout: dict[str, Any]
    rendezvous: str
    """Where rank 0's store listens."""
    members: list[str]
    """Worker ids by rank."""
    reason: str
    micro_batch_sequences: int | None = None


@dataclass(frozen=True)
class DrainAtStep:
    """Finish the step, then wait for an assignment; with `stop`, save and end instead.

    With `departs`, a member will leave, so the state that only it holds must be saved.
    """

    NAME: ClassVar = "drain"
    epoch: int
    generation: int
    stop: bool = False
    departs: bool = False


@dataclass(frozen=True)
class AbortGeneration:
    """A member is lost: abort the current step and wait for an assignment."""

    NAME: ClassVar = "abort"
    epoch: int
    generation: int
    reason: str


@dataclass(frozen=True)
class Shutdown:
    """End this process: the run does not need it."""

    NAME: ClassVar = "shutdown"
    epoch: int
    reason: str


@dataclass(frozen=True)
class Start:
    """Start a worker process."""

    NAME: ClassVar = "start"
    epoch: int
    worker: str


@dataclass(frozen=True)
class KillWorker:
    """End a worker's process by force."""

    NAME: ClassVar = "kill"
    epoch: int
    worker: str


@dataclass(frozen=True)
class RunEnded:
    """The run is over: finished, stopped or failed."""

    NAME: ClassVar = "ended"
    epoch: int
    outcome: str
    error: dict[str, Any] | None = None


ToCoordinator = (
    ElasticHello | WaitingForAssignment | Heartbeat | RunEvent | WorkerDone | Started | Exited | StopRequest
)
ToWorker = Assign | DrainAtStep | AbortGeneration | Shutdown | Heartbeat
ToAgent = Start | KillWorker | RunEvent | RunEnded | Heartbeat

_ALL = (
    ElasticHello,
    WaitingForAssignment,
    Heartbeat,
    RunEvent,
    WorkerDone,
    Started,
    Exited,
    StopRequest,
    Assign,
    DrainAtStep,
    AbortGeneration,
    Shutdown,
)
_KINDS: dict[str, type[Any]] = {kind.NAME: kind for kind in (*_ALL, Start, KillWorker, RunEnded)}


def holder_of(node: str, pid: int) -> str:
    """Return the name under which a coordinator process holds the lease."""
    return f"{node}/{pid}"


def encode(message: ToCoordinator | ToWorker | ToAgent) -> dict[str, Any]:
    """Return a message as a link sends it: `link.send(**encode(DrainAtStep(3, 7)))`."""
    return {message.NAME: asdict(message)}


def decode(message: dict[str, Any]) -> ToCoordinator | ToWorker | ToAgent | None:
    """Read what `encode` wrote; None for an unknown or incomplete message. Unknown fields are ignored."""
    if len(message) != 1:
        return None
    name, content = next(iter(message.items()))
    kind = _KINDS.get(name)
    if kind is None or not isinstance(content, dict):
        return None
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if not needed <= content.keys():
        return None
    known = {f.name for f in fields(kind)}
    result: ToCoordinator | ToWorker | ToAgent = kind(**{k: v for k, v in content.items() if k in known})
    return result
