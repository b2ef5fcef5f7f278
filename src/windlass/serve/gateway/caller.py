"""Who asks: what the guard found out about a request before any route sees it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from windlass.spec.tenancy import DEFAULT

USE, ADMIN, METRICS = "use", "admin", "metrics"


class Caller(msgspec.Struct, frozen=True):
    """The key that a request came with, and what it may do."""

    key: str
    tenant: str
    scopes: frozenset[str]
    shared_prefix: bool = False
    """Whether its tenant agreed to share computed beginnings of prompts with others that did."""

    @property
    def bound(self) -> str:
        """The tenant of which alone it may learn anything; "" for whoever runs the installation."""
        return "" if self.tenant == DEFAULT else self.tenant


ANYONE = Caller(key="", tenant="", scopes=frozenset({USE, ADMIN, METRICS}))
"""Whoever asks a gateway that was started without keys."""


def caller_of(request: Request) -> Caller:
    """Return who asks; a request that no guard has looked at is a mistake of ours."""
    caller: Caller = request.scope["state"]["caller"]
    return caller
