"""Ranks on another machine: both ends of the protocol between its launcher and the deciding one.

    i -> 0   event {rank, event} | exit {rank, code, error, tail} | stop_request | ended
    0 -> i   start {folder, world, rendezvous, threads, ranks} | interrupt | end {grace_s}
             | over {done} | failed {kind, message, hint}

The messages carry no commands: a node starts only its own windlass on a directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.cluster.launch.exit_status import RankExit
from windlass.cluster.launch.launcher import GRACE_S, LOOK_EVERY_S, interrupts
from windlass.cluster.launch.local_process import error_of
from windlass.cluster.launch.local_ranks import (
    LocalRanks,
    RankEvent,
    RankMessage,
    RankTask,
    RemoteStopRequest,
)
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.protocol.entrypoint import error_event
from windlass.spec.protocol.link import Link, Message, wait_for
from windlass.spec.run import RUN_FILE

ENDING_S = 1.0
"""For a node to report that its ranks have ended, in addition to their grace."""


class RemoteRanks:
    """The ranks of another machine, from the side of the deciding launcher."""

    def __init__(self, link: Link, node: int, ranks: range) -> None:
        self._link, self._node, self._numbers = link, node, ranks
        self._open: set[int] = set()
        """The ranks whose exit is not known."""

    def start(self, task: RankTask) -> None:
        self._open = set(self._numbers)
        self._link.send(start={**asdict(task), "ranks": [self._numbers.start, self._numbers.stop]})

    def files(self) -> list[int]:
        return [] if self._link.closed else [self._link.fileno()]

    def poll(self) -> list[RankMessage]:
        messages = [found for m in self._link.receive() if (found := parse_message(m)) is not None]
        self._open -= {e.rank for e in messages if isinstance(e, RankExit)}
        if self._link.closed:
            reason = f"node {self._node} ({self._link.peer}) disconnected"
            now_s = time.monotonic()
            messages += [RankExit(rank, 1, now_s, gone=reason) for rank in sorted(self._open)]
            self._open = set()
        return messages

    def interrupt(self) -> None:
        self._link.send(interrupt=True)

    def dismiss(self, grace_s: float) -> None:
        self._link.send(end={"grace_s": grace_s})

    def end(self, grace_s: float) -> None:
        """Wait until the node reports the end; after a timeout close the link, which ends its ranks."""
        until = time.monotonic() + grace_s + ENDING_S
        while not self._link.closed:
            message = self._link.answer(until - time.monotonic())
            if message is None:
                self._link.close()
            elif "ended" in message:
                break
        self._open = set()


class NodeAgent:
    """The launcher of another machine: it obeys node 0, and ends its ranks when node 0 is gone."""

    def __init__(self, link: Link, node: int, module: str, say: Callable[[str], None]) -> None:
        self._link, self._node, self._module, self._say = link, node, module, say
        self._ranks = LocalRanks(range(0), module)
        self._stop_requests = 0
        self._started = False

    def run(self) -> bool:
        """Run until the run is over. Return False when it was stopped; raise the error if it failed."""
        outcome: bool | None = None
        try:
            with interrupts(self._interrupt):
                while outcome is None:
                    outcome = self._step()
        finally:
            self._end(GRACE_S)
            self._link.close()
        return outcome

    def _step(self) -> bool | None:
        """Handle the messages of node 0 and send what happened here; return the outcome once it is known."""
        wait_for([self._link.fileno(), *self._ranks.files()], LOOK_EVERY_S)
        for message in self._link.receive():
            if "failed" in message:
                raise error_of(message["failed"])
            if "over" in message:
                return bool(message["over"]["done"])
            self._obey(message)
        if self._link.closed:
            raise ProcessFailed(
                f"node {self._node} lost node 0 ({self._link.peer})",
                hint="its ranks were ended; --resume continues from the last checkpoint",
            )
        for found in self._ranks.poll():
            self._link.send(**encode_message(found))
        for _ in range(self._stop_requests):
            self._link.send(stop_request=True)
        self._stop_requests = 0
        return None

    def _obey(self, message: Message) -> None:
        if "start" in message:
            self._start(message["start"])
        elif "interrupt" in message:
            self._ranks.interrupt()
        elif "end" in message:
            self._end(message["end"]["grace_s"])
            self._link.send(ended=True)

    def _start(self, fields: dict[str, Any]) -> None:
        ranks = range(*fields.pop("ranks"))
        task = RankTask(**fields)
        if not (Path(task.folder) / RUN_FILE).exists():
            error = BadInput(
                f"node {self._node}: the run's directory {task.folder} does not exist here",
                hint="all nodes need the same --home, in a shared directory",
            )
            self._link.send(**encode_message(RankExit(ranks.start, 2, 0.0, error=error_event(error))))
            return
        self._ranks = LocalRanks(ranks, self._module)
        self._ranks.start(task)
        self._started = True
        self._say(f"node {self._node}: ranks {_listed(ranks)} of {task.world} run in {task.folder}")

    def _end(self, grace_s: float) -> None:
        self._ranks.dismiss(grace_s)
        self._ranks.end(grace_s)

    def _interrupt(self) -> None:
        if not self._started:
            raise KeyboardInterrupt
        self._stop_requests += 1


def encode_message(message: RankMessage) -> Message:
    """Encode a message for node 0."""
    if isinstance(message, RankEvent):
        return {"event": {"rank": message.rank, "event": message.event}}
    if isinstance(message, RemoteStopRequest):
        return {"stop_request": True}
    return {"exit": {key: getattr(message, key) for key in ("rank", "code", "error", "tail")}}


def parse_message(message: Message) -> RankMessage | None:
    """Decode what `encode_message` returned; clocks differ, so an exit has the time of its arrival."""
    if "event" in message:
        return RankEvent(int(message["event"]["rank"]), message["event"]["event"])
    if "exit" in message:
        return RankExit(at_s=time.monotonic(), **message["exit"])
    return RemoteStopRequest() if "stop_request" in message else None


def _listed(ranks: range) -> str:
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start} to {ranks.stop - 1}"
