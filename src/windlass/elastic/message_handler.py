"""Takes down in the roll what workers and agents say, who they are, and who of them is sent home."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from windlass.cluster.launch.local_process import cause_of, error_of
from windlass.elastic.membership_state import AgentState, MembershipState, WorkerState
from windlass.spec.errors import AskedWrongly
from windlass.spec.protocol.elastic import (
    ElasticHello,
    Exited,
    Heartbeat,
    KillWorker,
    RunEvent,
    Started,
    StopRequest,
    ToAgent,
    ToCoordinator,
    ToWorker,
    WaitingForAssignment,
    WorkerDone,
)

MAX_SAME_FAILURES = 3
"""Generations that end with the same error of ours: it will not go away by itself."""


class Outbox(Protocol):
    """How a leader speaks: over the door's sockets."""

    def to_worker(self, worker: str, message: ToWorker) -> None:
        """Say something to a worker, if it is connected."""

    def to_agent(self, node: str, message: ToAgent) -> None:
        """Say something to the agent of a node, if it is connected."""


class MessageHandler:
    """The ears of a leader."""

    def __init__(
        self,
        roll: MembershipState,
        epoch: int,
        speech: Outbox,
        note: Callable[..., object],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._roll, self._epoch, self._speech, self._note, self._tell = roll, epoch, speech, note, tell
        self.known: set[str] = set()
        """Workers that joined, under whichever coordinator."""
        self.gone: set[str] = set()
        """Workers that were lost or dismissed: whoever of them comes back is sent home."""
        self._failures: dict[str, set[int | None]] = defaultdict(set)
        """The generations in which a worker failed, by what it said."""

    def greet(self, hello: ElasticHello, now_s: float) -> bool:
        """Take in whoever says hello; return False to send it away."""
        if hello.role == "agent":
            self._greet_agent(hello, now_s)
            return True
        if hello.worker in self.gone:
            return False
        if hello.worker not in self.known:
            self.known.add(hello.worker)
            self._note("joined", worker=hello.worker, node=hello.node)
        worker = self._roll.workers.setdefault(
            hello.worker, WorkerState(hello.worker, hello.node, now_s, now_s)
        )
        worker.connected, worker.cut, worker.expected, worker.heard_s = True, False, False, now_s
        worker.pid, worker.store, worker.node = hello.pid, hello.store, hello.node
        worker.generation, worker.step = hello.generation, hello.step
        return True

    def hear(self, sender: str, message: ToCoordinator, now_s: float) -> None:
        """Take a message of the worker called `sender`."""
        worker = self._roll.workers.get(sender)
        if worker is None:
            return
        if isinstance(message, Heartbeat):
            self._hear_beat(worker, message, now_s)
        elif isinstance(message, WaitingForAssignment):
            worker.come(message, now_s)
            self._roll.get_on(now_s)
        elif isinstance(message, RunEvent):
            self._tell(message.event)
        elif isinstance(message, WorkerDone):
            self._hear_done(worker, message, now_s)

    def hear_agent(self, message: ToCoordinator, now_s: float) -> None:
        """Take a message of an agent. A worker's age counts from its start, not from the wish for it."""
        if isinstance(message, Started) and message.worker in self._roll.workers:
            worker = self._roll.workers[message.worker]
            worker.pid = message.pid
            if not worker.connected:
                worker.since_s = worker.heard_s = now_s
        elif isinstance(message, Exited):
            self._hear_exit(message)
        elif isinstance(message, StopRequest):
            self._roll.stops += 1

    def lose_link(self, sender: str) -> None:
        """Take note that the connection of a worker was closed."""
        worker = self._roll.workers.get(sender)
        if worker is not None and worker.dismissed:
            del self._roll.workers[sender]
        elif worker is not None and not worker.over:
            worker.cut = True

    def lose_agent(self, node: str) -> None:
        """Its workers speak for themselves; only nothing can be started there."""
        self._roll.agents.pop(node, None)

    def part_with(self, worker: WorkerState, reason: str) -> None:
        """Members of its generation that it leaves behind come to the lobby with it, or fail without it."""
        if not worker.dismissed:
            worker.dismissed = True
            self.gone.add(worker.worker)
            self._note("left", worker=worker.worker, node=worker.node, reason=reason)

    def _hear_beat(self, worker: WorkerState, beat: Heartbeat, now_s: float) -> None:
        moved = worker.beat(beat, now_s)
        unheard = beat.phase == "lobby" and worker.ready_s is None
        if unheard and (worker.rank is None or beat.generation == self._roll.generation):
            worker.come(WaitingForAssignment(beat.generation, beat.step, "it waits in the lobby"), now_s)
        if moved and worker.rank is not None:
            self._roll.get_on(now_s)

    def _hear_done(self, worker: WorkerState, done: WorkerDone, now_s: float) -> None:
        worker.heard_s = worker.done_s = now_s
        if done.outcome == "left":
            self.part_with(worker, "it was asked to leave")
        elif done.outcome == "failed":
            self._hear_failure(worker, done.error or {})
        else:
            worker.outcome = done.outcome

    def _hear_failure(self, worker: WorkerState, told: dict[str, Any]) -> None:
        """A mistake of the user ends the run, and so does what happens again and again; else it is a loss."""
        error = error_of(told)
        seen = self._failures[error.message]
        seen.add(worker.generation)
        if isinstance(error, AskedWrongly) or len(seen) >= MAX_SAME_FAILURES:
            worker.outcome, worker.error = "failed", told
        else:
            worker.exit = error.message

    def _hear_exit(self, exited: Exited) -> None:
        worker = self._roll.workers.get(exited.worker)
        if worker is None:
            return
        if worker.dismissed:
            del self._roll.workers[worker.worker]
        elif worker.outcome is None:
            cause = cause_of(exited.code) if exited.code is not None else "its process is gone"
            worker.exit = worker.exit or cause
            self._roll.last_words = f"{worker.worker} {cause}; {exited.tail}"

    def _greet_agent(self, hello: ElasticHello, now_s: float) -> None:
        """Learn what runs there; what was said of the others was lost with an earlier connection."""
        roll = self._roll
        roll.agents[hello.node] = AgentState(hello.node, hello.host, hello.most)
        for worker in roll.workers.values():
            if worker.node == hello.node and worker.worker not in hello.workers:
                worker.cut = worker.cut or not worker.connected
        for name, pid in hello.workers.items():
            if name in self.gone:
                self._speech.to_agent(hello.node, KillWorker(self._epoch, name))
            elif name not in roll.workers:
                roll.workers[name] = WorkerState(name, hello.node, now_s, now_s, pid=pid)
