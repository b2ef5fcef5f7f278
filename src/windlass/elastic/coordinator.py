"""The coordinator of an elastic run: `python -m windlass.elastic.coordinator FOLDER --node N --host H`.

    candidate: watch the lease -> leader: accept, hear, decide (leader.py), act -> candidate ...

Every machine has one; the lease in the run's directory (store.lease) says which of them leads. All that a
leader knows it learns again from the journal and from those who connect, so it can be killed at any time.
One thread, one loop: nothing here ever waits for a peer.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

from windlass.elastic.leader import Leader
from windlass.spec.errors import StoreFailed
from windlass.spec.protocol.elastic import (
    COORDINATOR,
    OVER,
    ElasticHello,
    Heartbeat,
    RunEvent,
    Shutdown,
    ToAgent,
    ToWorker,
    decode,
    encode,
    holder_of,
)
from windlass.spec.protocol.entrypoint import EntrypointParser, run_entrypoint
from windlass.spec.protocol.link import Link
from windlass.store.lease import Lease
from windlass.store.store_dir import StoreDir

TICK_S = 0.1
"""Between two looks at everybody; whatever changes the company is looked at when it happens."""
PULSE_S = 0.5
"""Between two signs of the leader to all who listen."""
ASLEEP_S = 0.5
"""A pause of this process that others must not be blamed for."""
PARTING_S = 1.0
"""For agents to hear that the run is over."""


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.elastic.coordinator")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--node", required=True)
    parser.add_argument("--host", required=True)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.create_server((args.host, 0), backlog=256) as server:
        Coordinator(args.folder, args.node, args.host, server).run()
    return 0


class Coordinator:
    """A candidate, and while it holds the lease the leader."""

    def __init__(self, folder: Path, node: str, host: str, server: socket.socket) -> None:
        self._folder, self._node, self._server = folder, node, server
        self._address = f"{host}:{server.getsockname()[1]}"
        self._lease = Lease(StoreDir(folder / COORDINATOR), holder_of(node, os.getpid()), self._address)
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)
        self._links: list[Link] = []
        self._names: dict[Link, ElasticHello] = {}
        """Who is at the other end, once it said hello."""
        self._leader: Leader | None = None
        self._beat_s = self._stepped_s = 0.0
        self._urgent = False
        """Whether something was heard that may change the company."""
        self._woke_s = time.monotonic()

    def run(self) -> None:
        """Follow or lead until the run is over."""
        while not self._over():
            self._selector.select(TICK_S)
            now_s = self._wake()
            leads = self._hold(now_s)
            if leads and self._leader is None:
                self._take_over(now_s)
            elif not leads and self._leader is not None:
                self._step_down()
            self._accept(now_s)
            if self._leader is not None:
                self._lead(self._leader, now_s)
        self._part()

    def to_worker(self, worker: str, message: ToWorker) -> None:
        self._send(message, "worker", worker)

    def to_agent(self, node: str, message: ToAgent) -> None:
        self._send(message, "agent", node)

    def _over(self) -> bool:
        """A candidate finds it in the store, the leader knows."""
        if self._leader is not None:
            return self._leader.over is not None
        return (self._folder / OVER).exists()

    def _wake(self) -> float:
        """Return the time; what passed while this process was frozen is forgiven to all others."""
        now_s = time.monotonic()
        asleep_s = now_s - self._woke_s
        if asleep_s > ASLEEP_S and self._leader is not None:
            self._leader.roll.forgive(asleep_s)
        self._woke_s = now_s
        return now_s

    def _hold(self, now_s: float) -> bool:
        """Keep or try to get the lease. A store that fails for a moment changes nothing."""
        try:
            return self._lease.step(now_s)
        except StoreFailed as error:
            sys.stderr.write(f"lease: {error}\n")
            return self._lease.epoch is not None

    def _take_over(self, now_s: float) -> None:
        assert self._lease.epoch is not None
        epoch = self._lease.epoch
        self._leader = Leader(self._folder, epoch, self._node, self, now_s)
        self._leader.begin(self._address, "the first" if epoch == 1 else "the one before fell silent")

    def _step_down(self) -> None:
        """Whoever was connected looks for the one who leads."""
        self._leader = None
        for link in list(self._links):
            self._drop(link)

    def _accept(self, now_s: float) -> None:
        """Closed connections are dropped first: a new one may get the number of their descriptor."""
        for link in [link for link in self._links if link.closed]:
            self._lose(link, now_s)
        while True:
            try:
                connection = self._server.accept()[0]
            except OSError:
                return
            if self._leader is None:
                connection.close()
                continue
            link = Link(connection)
            self._links.append(link)
            self._selector.register(link, selectors.EVENT_READ)

    def _lead(self, leader: Leader, now_s: float) -> None:
        for link in list(self._links):
            for message in link.receive():
                self._hear(leader, link, decode(message), now_s)
            if link.closed:
                self._lose(link, now_s)
        if not self._urgent and now_s - self._stepped_s < TICK_S:
            return
        self._urgent, self._stepped_s = False, now_s
        if not leader.step(now_s):
            sys.stderr.write("most members are silent: resigning\n")
            self._lease.resign(now_s)
            self._step_down()
            return
        if now_s - self._beat_s >= PULSE_S:
            self._beat_s = now_s
            for link in self._names:
                link.send(**encode(Heartbeat(epoch=self._lease.epoch or 0)))

    def _hear(self, leader: Leader, link: Link, message: object, now_s: float) -> None:
        hello = self._names.get(link)
        self._urgent = self._urgent or not isinstance(message, Heartbeat | RunEvent)
        if isinstance(message, ElasticHello):
            self._names[link] = message
            if not leader.reception.greet(message, now_s):
                link.send(**encode(Shutdown(self._lease.epoch or 0, "it was given up for lost")))
        elif hello is None:
            link.close()
        elif hello.role == "agent":
            leader.reception.hear_agent(message, now_s)  # type: ignore[arg-type]
        else:
            leader.reception.hear(hello.worker, message, now_s)  # type: ignore[arg-type]

    def _lose(self, link: Link, now_s: float) -> None:
        hello = self._names.get(link)
        self._urgent = True
        self._drop(link)
        if self._leader is None or hello is None or self._link_of(hello) is not None:
            return  # a stranger, or one that has connected again
        if hello.role == "agent":
            self._leader.reception.lose_agent(hello.node)
        else:
            self._leader.reception.lose_link(hello.worker)

    def _link_of(self, hello: ElasticHello) -> Link | None:
        key = (hello.role, hello.node, hello.worker)
        return next((k for k, h in self._names.items() if (h.role, h.node, h.worker) == key), None)

    def _send(self, message: ToWorker | ToAgent, role: str, name: str) -> None:
        for link, hello in list(self._names.items()):
            if hello.role == role and name == (hello.worker if role == "worker" else hello.node):
                link.send(**encode(message))

    def _drop(self, link: Link) -> None:
        self._names.pop(link, None)
        self._links.remove(link)
        self._selector.unregister(link)
        link.close()

    def _part(self) -> None:
        """Stay until the agents have hung up, for a moment."""
        until = time.monotonic() + PARTING_S
        while any(h.role == "agent" for h in self._names.values()) and time.monotonic() < until:
            self._selector.select(TICK_S)
            for link in list(self._links):
                link.receive()
                if link.closed:
                    self._drop(link)


if __name__ == "__main__":
    run_entrypoint(main)
