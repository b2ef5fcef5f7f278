"""The other servers, as the first one speaks to them.

One that is gone is waited for: it comes back with what it had, is told the commits that it missed, and hears
the question again. So all that is asked here may be asked twice.
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
LOOK_AGAIN_S = 0.1
PATIENCE_S = 120.0
"""For a server to come back; its supervisor starts it again at once."""


Missed = Callable[[Sequence[int]], Sequence[ServerUpdate]]


class CannotFollow(ProcessFailed):
    """A server came back with less than was committed: all must go back to a checkpoint."""


class Elsewhere(ConnectionError):
    """A server is at another stage of the run than whoever came to it."""


def connect(folder: Path, number: int, stage: str, **who: Any) -> tuple[FrameConnection, Frame]:
    """Open a line to a server and hear how it stands; ConnectionError where it is not there."""
    seat = read_server_address(folder, number)
    if seat is None:
        raise ConnectionRefusedError(f"server {number} has not said where it is")
    line = FrameConnection(socket.create_connection((seat.host, seat.port), timeout=CONNECT_S))
    line.patient()
    try:
        frame = line.ask(key=seat.key, stage=stage, **who)
        if frame.head.get("stage") != stage:
            raise Elsewhere(f"server {number} is at stage '{frame.head.get('stage')}', not '{stage}'")
        return line, frame
    except ConnectionError:
        line.close()
        raise


class Peers:
    """Lines from the first server to the others."""

    def __init__(
        self,
        folder: Path,
        stage: str,
        servers: int,
        life: str,
        missed: Missed,
    ) -> None:
        """`missed` returns the updates after a stamp; it raises CannotFollow where it does not know them."""
        self._folder, self._stage, self._life, self._missed = folder, stage, life, missed
        self._lines: dict[int, FrameConnection | None] = dict.fromkeys(range(1, servers))

    def ask_all(self, **head: Any) -> list[dict[str, Any]]:
        """Ask every other server the same, all at the same time; return what each answers."""
        return [frame.head for frame in self.frames(**head)]

    def frames(self, **head: Any) -> list[Frame]:
        """The same, with the arrays of the answers."""
        for number in self._lines:
            try:
                self._line(number).send(**head)
            except ConnectionError:
                self._drop(number)
        return [self._answer(number, head) for number in self._lines]

    def close(self) -> None:
        for number in self._lines:
            self._drop(number)

    def crew(self, state: State) -> StarGroup:
        """Let all save together; what they say to each other passes through here."""
        for number in self._lines:
            self._line(number).send(do="save", state=asdict(state))
        return StarGroup([line for line in self._lines.values() if line is not None])

    def _answer(self, number: int, head: dict[str, Any]) -> Frame:
        while True:
            try:
                line = self._lines[number]
                return line.receive() if line is not None else self._line(number).ask(**head)
            except ConnectionError:
                self._drop(number)

    def _line(self, number: int) -> FrameConnection:
        """Return the line to a server, which knows all that was committed."""
        until = time.monotonic() + PATIENCE_S
        while (line := self._lines[number]) is None:
            try:
                line, frame = connect(self._folder, number, self._stage, role="chief", life=self._life)
                for update in self._missed(frame.head["stamp"]):
                    check_followed(number, line.ask(do="commit", update=asdict(update)).head)
                line.ask(do="forget", life=self._life)
                self._lines[number] = line
            except (ConnectionError, OSError) as error:
                if time.monotonic() > until:
                    raise ProcessFailed(f"server {number} did not come back: {error}") from None
                time.sleep(LOOK_AGAIN_S)
        return line

    def _drop(self, number: int) -> None:
        line, self._lines[number] = self._lines[number], None
        if line is not None:
            line.close()


def check_followed(number: int, answer: dict[str, Any]) -> None:
    """Refuse to go on with a server that has not got what an update is made of."""
    if "missing" in answer:
        raise CannotFollow(f"server {number} has lost {', '.join(answer['missing'])}")


class StarGroup:
    """The servers as a crew: each says its word to the first, which says all words to each."""

    rank = 0

    def __init__(self, lines: Sequence[FrameConnection]) -> None:
        self._lines, self.world = lines, len(lines) + 1

    def share(self, fact: Any) -> list[Any]:
        facts = [fact, *(line.receive().head["share"] for line in self._lines)]
        for line in self._lines:
            line.send(shared=facts)
        return facts

    def gather(self, arrays: Arrays) -> list[Arrays] | None:
        """Return the arrays of all, by server; None on all but the first. All call it together."""
        return [arrays, *(line.receive().arrays for line in self._lines)]

    def end(self) -> None:
        """Hear from all that they are through."""
        for line in self._lines:
            line.receive()


class BranchGroup:
    """The same crew, as another server sees it."""

    def __init__(self, line: FrameConnection, rank: int, world: int) -> None:
        self._line, self.rank, self.world = line, rank, world

    def share(self, fact: Any) -> list[Any]:
        facts: list[Any] = self._line.ask(share=fact).head["shared"]
        return facts

    def gather(self, arrays: Arrays) -> list[Arrays] | None:
        self._line.send(arrays, given=True)
        return None
