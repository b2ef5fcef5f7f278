"""The caller of a request: the key, tenant and scopes that the middleware found."""

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
    """Whether its tenant shares cached prefixes with other tenants that do."""

    @property
    def bound(self) -> str:
        """The only tenant whose data the caller may see; "" for the operator, who sees all."""
        return "" if self.tenant == DEFAULT else self.tenant


ANYONE = Caller(key="", tenant="", scopes=frozenset({USE, ADMIN, METRICS}))
"""The caller of a gateway that was started without keys."""


def caller_of(request: Request) -> Caller:
    """Return the caller that the middleware stored in the request's state."""
    caller: Caller = request.scope["state"]["caller"]
    return caller
