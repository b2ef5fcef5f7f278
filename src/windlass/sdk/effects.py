"""What a call asks of the world: the border between the pure core and the drivers.

A call is a generator. It yields what is to be done, is sent what came of it, and returns its result; all
decisions (what to send, whether to try again, where, what is new in a repeated answer) are made inside, and
nothing inside touches a socket, a clock or a random number. blocking.py and awaiting.py are the two drivers:
one waits in the thread, the other in the event loop. Tests drive calls with scripts.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

G = TypeVar("G")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What is sent, wherever it goes; `query` belongs to the path."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False
    repeats: bool = True
    """Whether it may be sent again when nobody knows if it arrived."""
    timed: bool = False
    """Whether the server is told how long the answer is worth having."""
    once: str | None = None
    """A key by which a server that keeps answers computes this one once."""


@dataclass(frozen=True)
class ReplyStarted:
    """An answer has begun."""

    status: int
    headers: Mapping[str, str]
    url: str


@dataclass(frozen=True)
class Broken:
    """The connection failed; `sent` when the request may have arrived."""

    reason: str
    sent: bool
    late: bool = False


@dataclass(frozen=True)
class Open:
    """Send a request. Gives a Head, or Broken."""

    url: str
    request: Request
    headers: Mapping[str, str]
    connect_s: float | None
    silence_s: float | None
    """How long nothing may come before the connection counts as broken."""


@dataclass(frozen=True)
class ReadMore:
    """Wait for more of the answer that was opened. Gives bytes, b"" at its end, or Broken."""

    within_s: float | None


@dataclass(frozen=True)
class Close:
    """Let go of the answer that was opened, read or not."""


@dataclass(frozen=True)
class Look:
    """Look at the clock. Gives seconds that never go back."""


@dataclass(frozen=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True)
class Draw:
    """Give a random whole number of so many bits."""

    bits: int


@dataclass(frozen=True)
class Give:
    """Hand a piece to whoever reads the stream."""

    piece: Any


Effect = Open | ReadMore | Close | Look | Pause | Draw | Give
Call = Generator[Effect, Any, T]
"""A call that returns a T."""


@dataclass(frozen=True)
class Flow(Generic[G, T]):
    """A call that gives pieces of type G on its way, and returns a T."""

    call: Call[T]


def send(effect: Open) -> Call[ReplyStarted | Broken]:
    outcome: ReplyStarted | Broken = yield effect
    return outcome


def read(within_s: float | None) -> Call[bytes | Broken]:
    outcome: bytes | Broken = yield ReadMore(within_s)
    return outcome


def close() -> Call[None]:
    yield Close()


def look() -> Call[float]:
    now: float = yield Look()
    return now


def wait(seconds: float) -> Call[None]:
    yield Pause(seconds)


def draw(bits: int) -> Call[int]:
    drawn: int = yield Draw(bits)
    return drawn


def draw_share() -> Call[float]:
    """Draw a number from 0 up to, not including, 1."""
    drawn = yield from draw(53)
    return drawn / 2**53


def give(piece: Any) -> Call[None]:
    yield Give(piece)
