"""A stage for elastic workers: real processes, and a coordinator that does exactly what a test says.

It speaks the protocol of spec.protocol.elastic without any policy, so a test can let a member die, freeze or
come late at the moment of its choice.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from windlass.spec.layout import parse_layout
from windlass.spec.protocol.elastic import (
    COORDINATOR,
    AbortGeneration,
    Assign,
    DrainAtStep,
    ElasticHello,
    Heartbeat,
    Shutdown,
    WaitingForAssignment,
    WorkerDone,
    decode,
    encode,
)
from windlass.spec.protocol.link import Link, wait_for
from windlass.spec.run import RUN_FILE, Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

PATIENCE_S = 150.0
COME_S = 20.0
"""For a member of a generation that was given up to come to the lobby; then it is replaced, as a coordinator
does: gloo never ends a send that was cut off in the middle (docs/log.md)."""


class Actor:
    """A worker process as the stage knows it."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str) -> None:
        self.process, self.name = process, name
        self.link: Link | None = None
        self.store = ""
        self.lobby: WaitingForAssignment | None = None
        self.beat = Heartbeat()
        self.done: WorkerDone | None = None

    def send(self, word: Any) -> None:
        assert self.link is not None
        self.link.send(**encode(word))


class Stage:
    """Starts workers and tells them what to do."""

    def __init__(self, folder: Path, run: Run) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / RUN_FILE).write_text(run.model_dump_json())
        self.epoch, self.generation = 0, 0
        self._abandoned = 0
        self.actors: dict[str, Actor] = {}
        self._strangers: list[Link] = []
        self._killed: set[str] = set()
        self.stuck: list[str] = []
        """Who was replaced."""
        self._open()

    def _open(self) -> None:
        self.epoch += 1
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        address = f"127.0.0.1:{self._server.getsockname()[1]}"
        claim = {"epoch": self.epoch, "holder": "test", "address": address}
        StoreDir(self.folder / COORDINATOR).write(f"epoch-{self.epoch:06d}.json", json.dumps(claim).encode())
        StoreDir(self.folder / COORDINATOR).write(f"beat-{self.epoch:06d}", b"1")

    def replace_coordinator(self) -> None:
        """The coordinator dies, and another one takes over at another address."""
        self._server.close()
        for actor in self.actors.values():
            if actor.link is not None:
                actor.link.close()
                actor.link = None
        self._open()

    def start(self, *names: str) -> None:
        for name in names:
            code = (
                "import sys; from pathlib import Path; from windlass.train.elastic.worker import work;"
                f"sys.exit(work(Path({str(self.folder)!r}), {name!r}, 'n', '127.0.0.1', ()))"
            )
            log = (self.folder / f"{name}.log").open("wb")
            self.actors[name] = Actor(subprocess.Popen([sys.executable, "-c", code], stderr=log), name)

    def assign(self, *names: str, layout: str = "") -> None:
        """Let these be the next generation, once all of them wait in the lobby."""
        self._gather(names)
        self.generation += 1
        chosen = parse_layout(layout or f"dp={len(names)}")
        for rank, name in enumerate(names):
            actor = self.actors[name]
            actor.lobby = None
            actor.send(
                Assign(
                    epoch=self.epoch,
                    generation=self.generation,
                    rank=rank,
                    world=len(names),
                    layout=chosen.model_dump(mode="json"),
                    rendezvous=self.actors[names[0]].store,
                    members=list(names),
                    reason="the test says so",
                )
            )

    def _gather(self, names: Sequence[str]) -> None:
        """Wait until all are in the lobby; start whoever is stuck in the last generation anew."""
        come_s = time.monotonic() + COME_S

        def late() -> list[str]:
            return [name for name in names if not self._waits(self.actors[name])]

        self.until(lambda: not late() or time.monotonic() > come_s)
        for name in late() if self._abandoned == self.generation > 0 else ():
            if self.actors[name].beat.generation == self.generation:
                self.stuck.append(name)
                self.actors[name].process.kill()
                self.actors[name].process.wait()
                self.start(name)
        self.until(lambda: not late())

    def _waits(self, actor: Actor) -> bool:
        assert actor.process.poll() != 0, f"{actor.name} has ended already: {self.states()}"
        return actor.lobby is not None

    def drain(self, *names: str, stop: bool = False, departs: bool = False) -> None:
        for name in names:
            self.actors[name].send(DrainAtStep(self.epoch, self.generation, stop, departs))

    def abandon(self, *names: str) -> None:
        self._abandoned = self.generation
        for name in names:
            self._send_abandon(self.actors[name])

    def _send_abandon(self, actor: Actor) -> None:
        actor.send(AbortGeneration(self.epoch, self._abandoned, "the test says so"))

    def dismiss(self, name: str) -> None:
        self.actors[name].send(Shutdown(self.epoch, "the test says so"))

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        self._killed.add(name)
        os.kill(self.actors[name].process.pid, how)

    def until(self, seen: Callable[[], bool]) -> None:
        """Listen until something is true."""
        until_s = time.monotonic() + PATIENCE_S
        while not seen():
            self.listen()
            failed = [
                name for name, a in self.actors.items() if a.process.poll() and name not in self._killed
            ]
            assert not failed, self.logs()
            assert time.monotonic() < until_s, f"{self.states()}\n{self.logs()}"

    def until_step(self, step: int, *names: str) -> None:
        """Wait until these workers of the current generation have begun the step after `step`."""
        self.until(
            lambda: all(
                self.actors[name].beat.generation == self.generation and self.actors[name].beat.step >= step
                for name in names
            )
        )

    def until_done(self, *names: str) -> None:
        self.until(lambda: all(self.actors[name].done is not None for name in names))

    def listen(self) -> None:
        links = [a.link for a in self.actors.values() if a.link is not None and not a.link.closed]
        links += self._strangers
        wait_for([self._server.fileno(), *(link.fileno() for link in links)], 0.05)
        with contextlib.suppress(BlockingIOError):
            self._strangers.append(Link(self._server.accept()[0]))
        for link in list(self._strangers):
            first, *others = [decode(message) for message in link.receive()] or [None]
            if isinstance(first, ElasticHello):
                actor = self.actors[first.worker]
                actor.link, actor.store = link, first.store
                self._strangers.remove(link)
                if first.generation is not None and first.generation == self._abandoned:
                    self._send_abandon(actor)  # it may have left the old line before it could hear it there
                self._hear(actor, others)
        for actor in self.actors.values():
            if actor.link is not None:
                self._hear(actor, [decode(message) for message in actor.link.receive()])

    def _hear(self, actor: Actor, words: Iterable[object]) -> None:
        for word in words:
            if isinstance(word, WaitingForAssignment):
                actor.lobby = word
            elif isinstance(word, Heartbeat):
                actor.beat = word
                actor.send(Heartbeat(epoch=self.epoch))
            elif isinstance(word, WorkerDone):
                actor.done = word

    def states(self) -> str:
        """Say where everybody is, for whoever wonders why something never came true."""
        return "\n".join(
            f"{name}: exit code {actor.process.poll()}, {actor.beat}, {actor.lobby}, {actor.done}"
            for name, actor in self.actors.items()
        )

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in self.folder.glob("*.log"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in Journal(StoreDir(self.folder), "journal.jsonl").read() if r["event"] == kind]


@contextlib.contextmanager
def staged(folder: Path, run: Run) -> Iterator[Stage]:
    stage = Stage(folder, run)
    try:
        yield stage
    finally:
        for actor in stage.actors.values():
            actor.process.kill()
            actor.process.wait()
