"""Where a server hears others: a thread for each connection, from its first word to its end.

Who connects says the key of this server's seat, or nothing more is heard. A worker has a line to every
server, to pull and to push, and one more to the first, to ask for work; the first has a line to every other.
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


def open_hall(
    folder: Path, number: int, host: str, shard: ServerShard, servers: int, chief: PrimaryServer | None = None
) -> RpcServer:
    """Listen for whoever has read this server's seat."""
    listener = socket.create_server((host, 0), backlog=BACKLOG)
    seat = register_server(folder, number, host, listener.getsockname()[1])
    return RpcServer(listener, seat, shard, number, servers, chief)


class RpcServer:
    """One server's listening socket, and whom it speaks to."""

    def __init__(
        self,
        listener: socket.socket,
        seat: ServerAddress,
        shard: ServerShard,
        rank: int,
        world: int,
        chief: PrimaryServer | None = None,
    ) -> None:
        self._listener, self._key, self._shard = listener, seat.key, shard
        self._lines: set[FrameConnection] = set()
        self._rank, self._world = rank, world
        self.chief = chief
        self.failed: Callable[[BaseException], None] = lambda _error: None
        threading.Thread(target=self._accept, name="hall", daemon=True).start()

    def close(self) -> None:
        """Hear nobody from now on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()
        for line in list(self._lines):
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(connection,), daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        connection.settimeout(HELLO_S)
        line = FrameConnection(connection)
        self._lines.add(line)
        try:
            head = line.receive(max_head=FIRST_HEAD_BYTES, body=False).head
            if not hmac.compare_digest(str(head.get("key")), self._key):
                return
            line.patient()
            shard = self._shard
            line.send(stage=shard.part.stage, stamp=shard.stamp, staged=shard.staged())
            if head.get("stage") == shard.part.stage:
                self._attend(line, head)
        except ConnectionError:
            pass  # who is gone is gone; whatever they had is given to others
        except WindlassError as error:
            self.failed(error)
        finally:
            self._lines.discard(line)
            line.close()

    def _attend(self, line: FrameConnection, head: dict[str, Any]) -> None:
        if head.get("role") == "asks" and self.chief is not None:
            self._employ(line, self.chief)
            return
        while True:
            frame = line.receive()
            if frame.head["do"] == "save":
                with contextlib.suppress(StoreFailed):  # the first server has met the same failure, and tells
                    self._shard.save(State(**frame.head["state"]), BranchGroup(line, self._rank, self._world))
                line.send(saved=self._shard.base.step)
            else:
                arrays, answer = self._answer(frame)
                line.send(arrays, **answer)

    def _employ(self, line: FrameConnection, chief: PrimaryServer) -> None:
        """Give a worker one task after the other, until it goes."""
        worker = chief.hello()
        try:
            while True:
                told = line.receive().head
                order = chief.next(worker, told.get("told"))
                line.send(**order)
        finally:
            chief.gone(worker)

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
                return {}, self._commit(ServerUpdate.heard(head["update"]), head.get("drop", []))
            case "forget":
                others = [task for task in shard.staged() if not task.startswith(head["life"])]
                shard.drop(others)
                return {}, {"forgot": len(others)}
        raise ConnectionResetError(f"nobody here knows how to {head['do']}")

    def _commit(self, update: ServerUpdate, dropped: list[str]) -> dict[str, Any]:
        missing = self._shard.missing(update)
        if missing:
            return {"missing": missing}
        told = self._shard.commit(update)
        self._shard.drop(dropped)
        return {**told, "stamp": self._shard.stamp}
