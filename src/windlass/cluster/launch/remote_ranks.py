"""Ranks on another machine: both ends of the conversation between its launcher and the one that decides.

    i -> 0   told {rank, event} | ending {rank, code, told, tail} | asked | ended
    0 -> i   start {folder, world, rendezvous, threads, ranks} | interrupt | end {grace_s}
             | over {done} | failed {kind, message, hint}

The messages carry no commands: a node starts nothing but its own windlass on a directory.
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
"""For a node to say that its ranks have ended, beyond their grace."""


class RemoteRanks:
    """Hands on another machine, as the launcher that decides sees them."""

    def __init__(self, link: Link, node: int, ranks: range) -> None:
        self._link, self._node, self._numbers = link, node, ranks
        self._open: set[int] = set()
        """The ranks whose end is not known."""

    def start(self, task: RankTask) -> None:
        self._open = set(self._numbers)
        self._link.send(start={**asdict(task), "ranks": [self._numbers.start, self._numbers.stop]})

    def files(self) -> list[int]:
        return [] if self._link.closed else [self._link.fileno()]

    def hear(self) -> list[RankMessage]:
        heard = [found for m in self._link.receive() if (found := heard_in(m)) is not None]
        self._open -= {e.rank for e in heard if isinstance(e, RankExit)}
        if self._link.closed:
            reason = f"node {self._node} ({self._link.peer}) went away"
            now_s = time.monotonic()
            heard += [RankExit(rank, 1, now_s, gone=reason) for rank in sorted(self._open)]
            self._open = set()
        return heard

    def interrupt(self) -> None:
        self._link.send(interrupt=True)

    def dismiss(self, grace_s: float) -> None:
        self._link.send(end={"grace_s": grace_s})

    def end(self, grace_s: float) -> None:
        """A node that does not say in time that they ended is let go, and ends them for that."""
        until = time.monotonic() + grace_s + ENDING_S
        while not self._link.closed:
            message = self._link.answer(until - time.monotonic())
            if message is None:
                self._link.close()
            elif "ended" in message:
                break
        self._open = set()


class NodeAgent:
    """The launcher of another machine: it decides nothing, and ends its ranks when node 0 is gone."""

    def __init__(self, link: Link, node: int, module: str, say: Callable[[str], None]) -> None:
        self._link, self._node, self._module, self._say = link, node, module, say
        self._hands = LocalRanks(range(0), module)
        self._asked = 0
        self._started = False

    def run(self) -> bool:
        """Attend until the run is over. Return False when it was stopped; raise how it failed."""
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
        """Do what node 0 says and tell what happened here; return the outcome once it is known."""
        wait_for([self._link.fileno(), *self._hands.files()], LOOK_EVERY_S)
        for message in self._link.receive():
            if "failed" in message:
                raise error_of(message["failed"])
            if "over" in message:
                return bool(message["over"]["done"])
            self._obey(message)
        if self._link.closed:
            raise ProcessFailed(
                f"node {self._node} lost node 0 ({self._link.peer})",
                hint="what it was doing here is ended; --resume goes on from the last checkpoint",
            )
        for heard in self._hands.hear():
            self._link.send(**message_of(heard))
        for _ in range(self._asked):
            self._link.send(asked=True)
        self._asked = 0
        return None

    def _obey(self, message: Message) -> None:
        if "start" in message:
            self._start(message["start"])
        elif "interrupt" in message:
            self._hands.interrupt()
        elif "end" in message:
            self._end(message["end"]["grace_s"])
            self._link.send(ended=True)

    def _start(self, told: dict[str, Any]) -> None:
        ranks = range(*told.pop("ranks"))
        task = RankTask(**told)
        if not (Path(task.folder) / RUN_FILE).exists():
            error = BadInput(
                f"node {self._node}: the run's directory {task.folder} is not here",
                hint="all nodes need the same --home, on a directory that they share",
            )
            self._link.send(**message_of(RankExit(ranks.start, 2, 0.0, told=error_event(error))))
            return
        self._hands = LocalRanks(ranks, self._module)
        self._hands.start(task)
        self._started = True
        self._say(f"node {self._node}: ranks {_listed(ranks)} of {task.world} run in {task.folder}")

    def _end(self, grace_s: float) -> None:
        self._hands.dismiss(grace_s)
        self._hands.end(grace_s)

    def _interrupt(self) -> None:
        if not self._started:
            raise KeyboardInterrupt
        self._asked += 1


def message_of(heard: RankMessage) -> Message:
    """Say something that was heard here."""
    if isinstance(heard, RankEvent):
        return {"told": {"rank": heard.rank, "event": heard.event}}
    if isinstance(heard, RemoteStopRequest):
        return {"asked": True}
    return {"ending": {key: getattr(heard, key) for key in ("rank", "code", "told", "tail")}}


def heard_in(message: Message) -> RankMessage | None:
    """Read what `message_of` said; clocks differ, so an end counts from when it is heard."""
    if "told" in message:
        return RankEvent(int(message["told"]["rank"]), message["told"]["event"])
    if "ending" in message:
        return RankExit(at_s=time.monotonic(), **message["ending"])
    return RemoteStopRequest() if "asked" in message else None


def _listed(ranks: range) -> str:
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start} to {ranks.stop - 1}"
