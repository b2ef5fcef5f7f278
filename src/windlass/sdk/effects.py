"""Effects: the boundary between the pure calls and the drivers.

A call is a generator. It yields effects, receives their results, and returns its own result; all
decisions (what to send, whether and where to retry, what is new in a repeated answer) are made inside, and
nothing inside touches a socket, a clock or a random number. `blocking` and `awaiting` are the two drivers:
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
    """An HTTP request without its server; a query is part of the path."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False
    repeats: bool = True
    """Whether it may be sent again if it is unknown whether it arrived."""
    timed: bool = False
    """Whether to send the remaining time to the server (X-Deadline-Ms)."""
    once: str | None = None
    """The Idempotency-Key: a server that stores answers computes this one once."""


@dataclass(frozen=True)
class ReplyStarted:
    """The head of a reply has arrived."""

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
    """Send a request. Results in ReplyStarted, or Broken."""

    url: str
    request: Request
    headers: Mapping[str, str]
    connect_s: float | None
    silence_s: float | None
    """Maximum silence before the connection counts as broken."""


@dataclass(frozen=True)
class ReadMore:
    """Wait for more of the open reply. Results in bytes, b"" at its end, or Broken."""

    within_s: float | None


@dataclass(frozen=True)
class Close:
    """Close the open reply, read or not."""


@dataclass(frozen=True)
class Look:
    """Read the monotonic clock, in seconds."""


@dataclass(frozen=True)
class Pause:
    """Sleep."""

    seconds: float


@dataclass(frozen=True)
class Draw:
    """Draw a random integer of so many bits."""

    bits: int


@dataclass(frozen=True)
class Give:
    """Deliver a piece to the reader of the stream."""

    piece: Any


Effect = Open | ReadMore | Close | Look | Pause | Draw | Give
Call = Generator[Effect, Any, T]
"""A call that returns a T."""


@dataclass(frozen=True)
class Flow(Generic[G, T]):
    """A call that yields pieces of type G, and returns a T."""

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
