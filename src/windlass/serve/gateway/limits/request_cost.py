"""The cost of a request, and the interface of admission.

admit (refuses, or grants the maximum cost) -> the engine works -> began -> settle (the real cost)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from windlass.serve.gateway.caller import Caller


class EngineCapacity(msgspec.Struct, frozen=True):
    """The capacity of the engines of one version."""

    slots: int
    """Answers that they can run at once."""
    memory: float = 0.0
    """The share of the KV cache in use, of the engine where it is largest."""


class RequestCost(msgspec.Struct, frozen=True):
    """What a request may use, known before it is computed."""

    model: str
    answers: int
    prompt_tokens: int
    max_tokens: int
    """The maximum of all its answers together."""
    priority: int = 0
    deadline_s: float | None = None
    alternatives: int = 0
    """Alternatives reported for each token (logprobs); they cost time that token counts do not show."""


class Grant(Protocol):
    """The admission of one request."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Response headers about limits."""

    def began(self) -> None:
        """Note the first token: the request no longer waits. Called at most once."""

    def settle(self, tokens: int) -> None:
        """Return what was not used; `tokens` is the sum of prompt and answers. Called exactly once."""


class Admission(Protocol):
    """Decides whether a request is admitted."""

    @property
    def level(self) -> int:
        """The brown-out level; 0 is full service."""

    async def admit(self, caller: Caller, cost: RequestCost) -> Grant:
        """Admit a request, or raise ApiError with the time after which to retry.

        It waits only for the database of quotas, and only if that may have some left.
        """

    async def run(self) -> None:
        """Run background work while the gateway runs."""


class Unlimited:
    """Admits every request."""

    level = 0

    async def admit(self, caller: Caller, cost: RequestCost) -> Grant:
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
