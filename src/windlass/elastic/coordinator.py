"""The coordinator of an elastic run: `python -m windlass.elastic.coordinator FOLDER --node N --host H`.

    candidate: watch the lease -> leader: accept, receive, decide (`leader`), act -> candidate ...

Every machine runs candidates; the holder of the lease in the run's directory (store.lease) leads. A leader
rebuilds its state from the journal and from the workers and agents that connect, so it may be killed at any
time. One thread, one loop: nothing here waits for a peer.
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
"""Between two checks of all workers; a message that may change the membership is handled at once."""
HEARTBEAT_S = 0.5
"""Between two heartbeats of the leader to its connections."""
ASLEEP_S = 0.5
"""A pause of this process that does not count as silence of the workers."""
PARTING_S = 1.0
"""Time for agents to receive that the run is over."""


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
        self._hellos: dict[Link, ElasticHello] = {}
        """The hello received on each connection."""
        self._leader: Leader | None = None
        self._beat_s = self._stepped_s = 0.0
        self._urgent = False
        """Whether a message was received that may change the membership."""
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
        self._wait_for_agents()

    def to_worker(self, worker: str, message: ToWorker) -> None:
        self._send(message, "worker", worker)

    def to_agent(self, node: str, message: ToAgent) -> None:
        self._send(message, "agent", node)

    def _over(self) -> bool:
        """A candidate reads it from the store; the leader knows it."""
        if self._leader is not None:
            return self._leader.over is not None
        return (self._folder / OVER).exists()

    def _wake(self) -> float:
        """Return the time. Time in which this process was frozen does not count as silence of the workers."""
        now_s = time.monotonic()
        asleep_s = now_s - self._woke_s
        if asleep_s > ASLEEP_S and self._leader is not None:
            self._leader.state.shift_clock(asleep_s)
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
        self._leader.begin(self._address, "first leader" if epoch == 1 else "the previous leader fell silent")

    def _step_down(self) -> None:
        """Close all connections: workers and agents look for the new leader."""
        self._leader = None
        for link in list(self._links):
            self._drop(link)

    def _accept(self, now_s: float) -> None:
        """Closed connections are dropped first: a new one may get the number of their descriptor."""
        for link in [link for link in self._links if link.closed]:
            self._on_disconnect(link, now_s)
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
                self._dispatch(leader, link, decode(message), now_s)
            if link.closed:
                self._on_disconnect(link, now_s)
        if not self._urgent and now_s - self._stepped_s < TICK_S:
            return
        self._urgent, self._stepped_s = False, now_s
        if not leader.step(now_s):
            sys.stderr.write("more than half of the members are silent: resigning\n")
            self._lease.resign(now_s)
            self._step_down()
            return
        if now_s - self._beat_s >= HEARTBEAT_S:
            self._beat_s = now_s
            for link in self._hellos:
                link.send(**encode(Heartbeat(epoch=self._lease.epoch or 0)))

    def _dispatch(self, leader: Leader, link: Link, message: object, now_s: float) -> None:
        hello = self._hellos.get(link)
        self._urgent = self._urgent or not isinstance(message, Heartbeat | RunEvent)
        if isinstance(message, ElasticHello):
            self._hellos[link] = message
            if not leader.handler.on_hello(message, now_s):
                link.send(**encode(Shutdown(self._lease.epoch or 0, "it was counted as lost")))
        elif hello is None:
            link.close()
        elif hello.role == "agent":
            leader.handler.on_agent_message(message, now_s)  # type: ignore[arg-type]
        else:
            leader.handler.on_worker_message(hello.worker, message, now_s)  # type: ignore[arg-type]

    def _on_disconnect(self, link: Link, now_s: float) -> None:
        hello = self._hellos.get(link)
        self._urgent = True
        self._drop(link)
        if self._leader is None or hello is None or self._link_of(hello) is not None:
            return  # it never said hello, or has connected again
        if hello.role == "agent":
            self._leader.handler.on_agent_disconnect(hello.node)
        else:
            self._leader.handler.on_worker_disconnect(hello.worker)

    def _link_of(self, hello: ElasticHello) -> Link | None:
        key = (hello.role, hello.node, hello.worker)
        return next((k for k, h in self._hellos.items() if (h.role, h.node, h.worker) == key), None)

    def _send(self, message: ToWorker | ToAgent, role: str, name: str) -> None:
        for link, hello in list(self._hellos.items()):
            if hello.role == role and name == (hello.worker if role == "worker" else hello.node):
                link.send(**encode(message))

    def _drop(self, link: Link) -> None:
        self._hellos.pop(link, None)
        self._links.remove(link)
        self._selector.unregister(link)
        link.close()

    def _wait_for_agents(self) -> None:
        """Wait until the agents have disconnected, for PARTING_S at most."""
        until = time.monotonic() + PARTING_S
        while any(h.role == "agent" for h in self._hellos.values()) and time.monotonic() < until:
            self._selector.select(TICK_S)
            for link in list(self._links):
                link.receive()
                if link.closed:
                    self._drop(link)


if __name__ == "__main__":
    run_entrypoint(main)
