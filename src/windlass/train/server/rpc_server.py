"""Accepts and serves the connections of one server, with a thread for each.

A client must present the key in the server's address file first, or the connection is closed. A worker has a
connection to every server, to pull and to push, and one more to the primary, for tasks; the primary has a
connection to every other server.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.protocol.server_registry import ServerAddress, register_server
from windlass.train.checkpoint.async_save import State
from windlass.train.server.frames import FIRST_HEAD_BYTES, Frame, FrameConnection
from windlass.train.server.peers import BranchGroup
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.shard import ServerShard
from windlass.train.server.updates import ServerUpdate

HELLO_S = 5.0
BACKLOG = 128


def open_rpc_server(
    folder: Path,
    number: int,
    host: str,
    shard: ServerShard,
    servers: int,
    primary: PrimaryServer | None = None,
) -> RpcServer:
    """Listen on a free port, and write address and key to the run's directory."""
    listener = socket.create_server((host, 0), backlog=BACKLOG)
    address = register_server(folder, number, host, listener.getsockname()[1])
    return RpcServer(listener, address, shard, number, servers, primary)


class RpcServer:
    """One server's listening socket and its connections."""

    def __init__(
        self,
        listener: socket.socket,
        address: ServerAddress,
        shard: ServerShard,
        rank: int,
        world: int,
        primary: PrimaryServer | None = None,
    ) -> None:
        self._listener, self._key, self._shard = listener, address.key, shard
        self._connections: set[FrameConnection] = set()
        self._rank, self._world = rank, world
        self.primary = primary
        self.failed: Callable[[BaseException], None] = lambda _error: None
        threading.Thread(target=self._accept, name="rpc_server", daemon=True).start()

    def close(self) -> None:
        """Stop listening and close all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client_socket, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client_socket,), daemon=True).start()

    def _handle(self, client_socket: socket.socket) -> None:
        client_socket.settimeout(HELLO_S)
        connection = FrameConnection(client_socket)
        self._connections.add(connection)
        try:
            head = connection.receive(max_head=FIRST_HEAD_BYTES, body=False).head
            if not hmac.compare_digest(str(head.get("key")), self._key):
                return
            connection.clear_timeout()
            shard = self._shard
            connection.send(stage=shard.part.stage, stamp=shard.stamp, staged=shard.staged())
            if head.get("stage") == shard.part.stage:
                self._serve_requests(connection, head)
        except ConnectionError:
            pass  # the client is gone; `leave` has returned its tasks
        except WindlassError as error:
            self.failed(error)
        finally:
            self._connections.discard(connection)
            connection.close()

    def _serve_requests(self, connection: FrameConnection, head: dict[str, Any]) -> None:
        if head.get("role") == "tasks" and self.primary is not None:
            self._serve_tasks(connection, self.primary)
            return
        while True:
            frame = connection.receive()
            if frame.head["do"] == "save":
                with contextlib.suppress(StoreFailed):  # the primary reports the same failure
                    self._shard.save(
                        State(**frame.head["state"]), BranchGroup(connection, self._rank, self._world)
                    )
                connection.send(saved=self._shard.base.step)
            else:
                arrays, answer = self._answer(frame)
                connection.send(arrays, **answer)

    def _serve_tasks(self, connection: FrameConnection, primary: PrimaryServer) -> None:
        """Give a worker tasks until it disconnects."""
        worker = primary.join()
        try:
            while True:
                request = connection.receive().head
                order = primary.next_task(worker, request.get("result"))
                connection.send(**order)
        finally:
            primary.leave(worker)

    def _answer(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        shard, head = self._shard, frame.head
        match head["do"]:
            case "pull":
                stamp, arrays = shard.pull(frame.arrays, ahead=head.get("ahead", 0))
                return arrays, {"stamp": stamp}
            case "push":
                shard.stage(head["task"], frame.arrays)
                return {}, {"staged": head["task"]}
            case "square":
                lost = shard.lost(head["tasks"])
                return {}, {"missing": lost} if lost else {"square": shard.square(head["tasks"])}
            case "commit":
                return {}, self._commit(ServerUpdate.from_facts(head["update"]), head.get("drop", []))
            case "forget":
                others = [task for task in shard.staged() if not task.startswith(head["life"])]
                shard.drop(others)
                return {}, {"forgot": len(others)}
        raise ConnectionResetError(f"unknown request '{head['do']}'")

    def _commit(self, update: ServerUpdate, dropped: list[str]) -> dict[str, Any]:
        missing = self._shard.missing(update)
        if missing:
            return {"missing": missing}
        facts = self._shard.commit(update)
        self._shard.drop(dropped)
        return {**facts, "stamp": self._shard.stamp}
