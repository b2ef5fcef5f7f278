"""What the members of an elastic run say to each other, over spec.protocol.link.

    worker -> coordinator   Hello, Lobby, Beat, Told, Done
    agent -> coordinator    Hello, Started, Exited, Asked
    coordinator -> worker   Assign, Border, Abandon, Dismiss, Beat
    coordinator -> agent    Start, Kill, Told, Over, Beat

On the wire a message is one object under its name, `{"border": {"epoch": 3, "generation": 7}}`. Whatever a
coordinator says carries its epoch, by which listeners tell it from an earlier one that does not know yet
that it was replaced.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

COORDINATOR = "coordinator"
"""In the run's directory: the lease of the leader, and how the run ended."""
OVER = f"{COORDINATOR}/over.json"
MEMBERS = "members.json"
WORKERS = "workers.json"
BEAT_S = 0.2
"""Between two beats of a worker."""


@dataclass(frozen=True)
class ElasticHello:
    """Who speaks; said first on every connection. A worker in the lobby says Lobby next."""

    NAME: ClassVar = "hello"
    role: str
    node: str
    worker: str = ""
    pid: int = 0
    host: str = ""
    store: str = ""
    """Of a worker: where it would listen for the others as rank 0, "host:port"."""
    generation: int | None = None
    step: int = 0
    version: str = ""
    most: int = 0
    """Of an agent: at most so many workers on its machine, 0 for no limit."""
    workers: dict[str, int] = field(default_factory=dict)
    """Of an agent: the workers that run there, with their process ids."""


@dataclass(frozen=True)
class WaitingForAssignment:
    """The main thread waits for an assignment. `why`: "new", "border", or the reason of a failure."""

    NAME: ClassVar = "lobby"
    generation: int | None
    step: int
    why: str


@dataclass(frozen=True)
class Heartbeat:
    """Still there; of a worker also how far, of a coordinator its epoch."""

    NAME: ClassVar = "beat"
    generation: int | None = None
    step: int = 0
    busy_s: float | None = None
    """Own compute seconds per sequence and step, the median of those since the last beat."""
    total_s: float = 0.0
    """The same, added up over `steps`: the median hides a step in which the worker stood still."""
    steps: int = 0
    phase: str = "step"
    """step, forming, saving, evaluating, paused or lobby."""
    epoch: int = 0


@dataclass(frozen=True)
class RunEvent:
    """An event for whoever follows the run."""

    NAME: ClassVar = "told"
    event: dict[str, Any]
    epoch: int = 0


@dataclass(frozen=True)
class WorkerDone:
    """A worker's last word: finished, stopped, left (alone, to be replaced) or failed."""

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
    """Somebody at an agent's terminal asked for the end of the run."""

    NAME: ClassVar = "asked"


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
    """Finish the step, then come to the lobby; with `stop`, save and end instead.

    With `departs`, some member will not be in the next generation, so what only it holds must be saved.
    """

    NAME: ClassVar = "border"
    epoch: int
    generation: int
    stop: bool = False
    departs: bool = False


@dataclass(frozen=True)
class AbortGeneration:
    """A member is lost: give up whatever is under way and come to the lobby."""

    NAME: ClassVar = "abandon"
    epoch: int
    generation: int
    reason: str


@dataclass(frozen=True)
class Shutdown:
    """End this process: it is not needed or not wanted."""

    NAME: ClassVar = "dismiss"
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

    NAME: ClassVar = "over"
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
    """Name a coordinator process, as the lease does."""
    return f"{node}/{pid}"


def encode(message: ToCoordinator | ToWorker | ToAgent) -> dict[str, Any]:
    """Return a message as it goes over a link: `link.send(**said(Border(3, 7)))`."""
    return {message.NAME: asdict(message)}


def decode(message: dict[str, Any]) -> ToCoordinator | ToWorker | ToAgent | None:
    """Read what `said` wrote; None for what is none of ours. Unknown fields are passed over."""
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
