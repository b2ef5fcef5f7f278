"""Connections from the primary to the other servers.

The primary waits for a server that died: it restarts with its log, receives the commits that it missed, and
then the request again. So every request here must be idempotent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.spec.errors import ProcessFailed
from windlass.spec.protocol.server_registry import read_server_address
from windlass.train.checkpoint.async_save import State
from windlass.train.server.frames import Arrays, Frame, FrameConnection
from windlass.train.server.updates import ServerUpdate

CONNECT_S = 2.0
RETRY_EVERY_S = 0.1
PATIENCE_S = 120.0
"""How long to wait for a server to come back; its supervisor restarts it at once."""


Missed = Callable[[Sequence[int]], Sequence[ServerUpdate]]


class CannotFollow(ProcessFailed):
    """A server has lost committed updates: all servers must go back to a checkpoint."""


class WrongStage(ConnectionError):
    """The server is at another stage of the run than the client."""


def connect(folder: Path, number: int, stage: str, **who: Any) -> tuple[FrameConnection, Frame]:
    """Connect to a server; return the connection and its greeting, or raise ConnectionError."""
    address = read_server_address(folder, number)
    if address is None:
        raise ConnectionRefusedError(f"server {number} has not registered its address")
    connection = FrameConnection(socket.create_connection((address.host, address.port), timeout=CONNECT_S))
    connection.clear_timeout()
    try:
        frame = connection.call(key=address.key, stage=stage, **who)
        if frame.head.get("stage") != stage:
            raise WrongStage(f"server {number} is at stage '{frame.head.get('stage')}', not '{stage}'")
        return connection, frame
    except ConnectionError:
        connection.close()
        raise


class Peers:
    """The primary's connections to all other servers."""

    def __init__(
        self,
        folder: Path,
        stage: str,
        servers: int,
        life: str,
        missed: Missed,
    ) -> None:
        """`missed` returns the updates after a stamp, or raises CannotFollow if they are unknown."""
        self._folder, self._stage, self._life, self._missed = folder, stage, life, missed
        self._connections: dict[int, FrameConnection | None] = dict.fromkeys(range(1, servers))

    def call_all(self, **head: Any) -> list[dict[str, Any]]:
        """Send a request to every other server concurrently; return the reply of each."""
        return [frame.head for frame in self.frames(**head)]

    def frames(self, **head: Any) -> list[Frame]:
        """Like `call_all`, with the arrays of the replies."""
        for number in self._connections:
            try:
                self._connection(number).send(**head)
            except ConnectionError:
                self._drop(number)
        return [self._answer(number, head) for number in self._connections]

    def close(self) -> None:
        for number in self._connections:
            self._drop(number)

    def group(self, state: State) -> StarGroup:
        """Start a joint save; return the group through which the servers communicate."""
        for number in self._connections:
            self._connection(number).send(do="save", state=asdict(state))
        return StarGroup([connection for connection in self._connections.values() if connection is not None])

    def _answer(self, number: int, head: dict[str, Any]) -> Frame:
        while True:
            try:
                connection = self._connections[number]
                return (
                    connection.receive() if connection is not None else self._connection(number).call(**head)
                )
            except ConnectionError:
                self._drop(number)

    def _connection(self, number: int) -> FrameConnection:
        """Return the connection to a server; reconnect and send missed commits if needed."""
        until = time.monotonic() + PATIENCE_S
        while (connection := self._connections[number]) is None:
            try:
                connection, frame = connect(
                    self._folder, number, self._stage, role="primary", life=self._life
                )
                for update in self._missed(frame.head["stamp"]):
                    check_followed(number, connection.call(do="commit", update=asdict(update)).head)
                connection.call(do="forget", life=self._life)
                self._connections[number] = connection
            except (ConnectionError, OSError) as error:
                if time.monotonic() > until:
                    raise ProcessFailed(f"server {number} did not come back: {error}") from None
                time.sleep(RETRY_EVERY_S)
        return connection

    def _drop(self, number: int) -> None:
        connection, self._connections[number] = self._connections[number], None
        if connection is not None:
            connection.close()


def check_followed(number: int, answer: dict[str, Any]) -> None:
    """Raise CannotFollow if a server lacks the pushes of an update."""
    if "missing" in answer:
        raise CannotFollow(f"server {number} has lost {', '.join(answer['missing'])}")


class StarGroup:
    """The process group of all servers, on the primary: it gathers from and broadcasts to the others."""

    rank = 0

    def __init__(self, connections: Sequence[FrameConnection]) -> None:
        self._connections, self.world = connections, len(connections) + 1

    def all_gather_json(self, fact: Any) -> list[Any]:
        facts = [fact, *(connection.receive().head["share"] for connection in self._connections)]
        for connection in self._connections:
            connection.send(shared=facts)
        return facts

    def gather(self, arrays: Arrays) -> list[Arrays] | None:
        """Return the arrays of all servers in order; None on all but the primary. A collective."""
        return [arrays, *(connection.receive().arrays for connection in self._connections)]

    def end(self) -> None:
        """Wait until all servers are done."""
        for connection in self._connections:
            connection.receive()


class BranchGroup:
    """The same group, on the other servers."""

    def __init__(self, connection: FrameConnection, rank: int, world: int) -> None:
        self._connection, self.rank, self.world = connection, rank, world

    def all_gather_json(self, fact: Any) -> list[Any]:
        facts: list[Any] = self._connection.call(share=fact).head["shared"]
        return facts

    def gather(self, arrays: Arrays) -> list[Arrays] | None:
        self._connection.send(arrays, given=True)
        return None
