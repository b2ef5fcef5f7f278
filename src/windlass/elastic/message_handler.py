"""Applies the messages of workers and agents to the membership state; turns away workers that were lost."""

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
"""Generations that end with the same error, after which the run fails."""


class Outbox(Protocol):
    """How a leader sends messages: over the coordinator's connections."""

    def to_worker(self, worker: str, message: ToWorker) -> None:
        """Send a message to a worker, if it is connected."""

    def to_agent(self, node: str, message: ToAgent) -> None:
        """Send a message to the agent of a node, if it is connected."""


class MessageHandler:
    """Handles the messages that a leader receives."""

    def __init__(
        self,
        state: MembershipState,
        epoch: int,
        outbox: Outbox,
        log_event: Callable[..., object],
        publish: Callable[[dict[str, Any]], None],
    ) -> None:
        self._state, self._epoch, self._outbox, self._log_event, self._publish = (
            state,
            epoch,
            outbox,
            log_event,
            publish,
        )
        self.known: set[str] = set()
        """Workers that joined, under this or an earlier leader."""
        self.gone: set[str] = set()
        """Workers that were lost or dismissed; one that connects again is shut down."""
        self._failures: dict[str, set[int | None]] = defaultdict(set)
        """Generations in which a worker failed, by error message."""

    def on_hello(self, hello: ElasticHello, now_s: float) -> bool:
        """Register a worker or an agent; return False if the worker must be shut down."""
        if hello.role == "agent":
            self._on_agent_hello(hello, now_s)
            return True
        if hello.worker in self.gone:
            return False
        if hello.worker not in self.known:
            self.known.add(hello.worker)
            self._log_event("joined", worker=hello.worker, node=hello.node)
        worker = self._state.workers.setdefault(
            hello.worker, WorkerState(hello.worker, hello.node, now_s, now_s)
        )
        worker.connected, worker.disconnected, worker.expected, worker.last_seen_s = True, False, False, now_s
        worker.pid, worker.store, worker.node = hello.pid, hello.store, hello.node
        worker.generation, worker.step = hello.generation, hello.step
        return True

    def on_worker_message(self, sender: str, message: ToCoordinator, now_s: float) -> None:
        """Handle a message of the worker `sender`."""
        worker = self._state.workers.get(sender)
        if worker is None:
            return
        if isinstance(message, Heartbeat):
            self._on_heartbeat(worker, message, now_s)
        elif isinstance(message, WaitingForAssignment):
            worker.mark_waiting(message, now_s)
            self._state.note_progress(now_s)
        elif isinstance(message, RunEvent):
            self._publish(message.event)
        elif isinstance(message, WorkerDone):
            self._on_done(worker, message, now_s)

    def on_agent_message(self, message: ToCoordinator, now_s: float) -> None:
        """Handle a message of an agent. A worker's age counts from its start, not from the request for it."""
        if isinstance(message, Started) and message.worker in self._state.workers:
            worker = self._state.workers[message.worker]
            worker.pid = message.pid
            if not worker.connected:
                worker.since_s = worker.last_seen_s = now_s
        elif isinstance(message, Exited):
            self._on_exit(message)
        elif isinstance(message, StopRequest):
            self._state.stops += 1

    def on_worker_disconnect(self, sender: str) -> None:
        """Record that the connection of a worker was closed."""
        worker = self._state.workers.get(sender)
        if worker is not None and worker.dismissed:
            del self._state.workers[sender]
        elif worker is not None and not worker.over:
            worker.disconnected = True

    def on_agent_disconnect(self, node: str) -> None:
        """Forget an agent: its workers keep their own connections, but none can be started there."""
        self._state.agents.pop(node, None)

    def dismiss(self, worker: WorkerState, reason: str) -> None:
        """Remove a worker from the run. Other members of its generation drain with it, or fail without it."""
        if not worker.dismissed:
            worker.dismissed = True
            self.gone.add(worker.worker)
            self._log_event("left", worker=worker.worker, node=worker.node, reason=reason)

    def _on_heartbeat(self, worker: WorkerState, beat: Heartbeat, now_s: float) -> None:
        moved = worker.on_heartbeat(beat, now_s)
        missed = beat.phase == "waiting" and worker.ready_s is None
        if missed and (worker.rank is None or beat.generation == self._state.generation):
            worker.mark_waiting(
                WaitingForAssignment(beat.generation, beat.step, "it waits for an assignment"), now_s
            )
        if moved and worker.rank is not None:
            self._state.note_progress(now_s)

    def _on_done(self, worker: WorkerState, done: WorkerDone, now_s: float) -> None:
        worker.last_seen_s = worker.done_s = now_s
        if done.outcome == "left":
            self.dismiss(worker, "it left on request")
        elif done.outcome == "failed":
            self._on_failure(worker, done.error or {})
        else:
            worker.outcome = done.outcome

    def _on_failure(self, worker: WorkerState, report: dict[str, Any]) -> None:
        """A user error ends the run, and so does a repeated error; any other error is a loss."""
        error = error_of(report)
        seen = self._failures[error.message]
        seen.add(worker.generation)
        if isinstance(error, AskedWrongly) or len(seen) >= MAX_SAME_FAILURES:
            worker.outcome, worker.error = "failed", report
        else:
            worker.exit = error.message

    def _on_exit(self, exited: Exited) -> None:
        worker = self._state.workers.get(exited.worker)
        if worker is None:
            return
        if worker.dismissed:
            del self._state.workers[worker.worker]
        elif worker.outcome is None:
            cause = cause_of(exited.code) if exited.code is not None else "its process is gone"
            worker.exit = worker.exit or cause
            self._state.last_words = f"{worker.worker} {cause}; {exited.tail}"

    def _on_agent_hello(self, hello: ElasticHello, now_s: float) -> None:
        """Compare its workers with the state: reports may have been lost with an earlier connection."""
        state = self._state
        state.agents[hello.node] = AgentState(hello.node, hello.host, hello.max_workers)
        for worker in state.workers.values():
            if worker.node == hello.node and worker.worker not in hello.workers:
                worker.disconnected = worker.disconnected or not worker.connected
        for name, pid in hello.workers.items():
            if name in self.gone:
                self._outbox.to_agent(hello.node, KillWorker(self._epoch, name))
            elif name not in state.workers:
                state.workers[name] = WorkerState(name, hello.node, now_s, now_s, pid=pid)
