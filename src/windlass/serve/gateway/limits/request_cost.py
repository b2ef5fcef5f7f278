"""Whether there is room for a request: asked before the engine is, settled when the answer has ended.

admit (refuses, or grants an estimate) -> the engine works -> began -> settle (what was really used)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from windlass.serve.gateway.caller import Caller


class EngineCapacity(msgspec.Struct, frozen=True):
    """What the engines of one version have."""

    slots: int
    """Answers that they make at once."""
    memory: float = 0.0
    """The largest share of its memory for keys and values that running requests hold in one of them."""


class RequestCost(msgspec.Struct, frozen=True):
    """What a request asks for, known before any of it is computed."""

    model: str
    answers: int
    prompt_tokens: int
    max_tokens: int
    """Tokens that all its answers may have together."""
    priority: int = 0
    deadline_s: float | None = None
    alternatives: int = 0
    """How many alternatives are reported for each token; they cost time that tokens do not show."""


class Grant(Protocol):
    """Room that was given to one request."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """What the head of the answer says about limits."""

    def began(self) -> None:
        """The first token is there: the request no longer waits. Called once, or never."""

    def settle(self, tokens: int) -> None:
        """Give back what was not used: `tokens` were read and written. Called exactly once."""


class Admission(Protocol):
    """Decides who is let in."""

    @property
    def level(self) -> int:
        """How much less is done than usual: the level of the brown-out ladder, 0 for full service."""

    async def admit(self, caller: Caller, wish: RequestCost) -> Grant:
        """Grant room, or raise ApiError with the time after which it is worth asking again.

        It waits for nothing but the answer of the state's database, and only where that may bring room.
        """

    async def run(self) -> None:
        """Do what must be done beside requests, for as long as the gateway lives."""


class Unlimited:
    """Lets everybody in."""

    level = 0

    async def admit(self, caller: Caller, wish: RequestCost) -> Grant:
        return _GRANTED

    async def run(self) -> None:
        pass


class _Granted:
    headers: Sequence[tuple[bytes, bytes]] = ()

    def began(self) -> None:
        pass

    def settle(self, tokens: int) -> None:
        pass


_GRANTED = _Granted()
