"""Whether there is room for a request: asked before the engine is, settled when the answer has ended.

admit (refuses, or grants an estimate) -> the engine works -> settle (what was really used)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from windlass.serve.gateway.caller import Caller


@dataclass(frozen=True)
class Wish:
    """What a request asks for, known before any of it is computed."""

    model: str
    answers: int
    prompt_tokens: int
    most_tokens: int
    """Tokens that all its answers may have together."""
    priority: int = 0
    deadline_s: float | None = None


class Grant(Protocol):
    """Room that was given to one request."""

    def settle(self, tokens: int) -> None:
        """Give back what was not used: `tokens` were read and written. Called exactly once."""


class Admission(Protocol):
    """Decides who is let in."""

    def admit(self, caller: Caller, wish: Wish) -> Grant:
        """Grant room, or raise ApiError with the time after which it is worth asking again."""


class Unlimited:
    """Lets everybody in."""

    def admit(self, caller: Caller, wish: Wish) -> Grant:
        return _GRANTED


class _Granted:
    def settle(self, tokens: int) -> None:
        pass


_GRANTED = _Granted()
