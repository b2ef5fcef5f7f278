"""How often, and how many at once, one tenant may ask the control API: so that others find it free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PER_S = 50.0
BURST = 100.0
AT_ONCE = 8
"""The API has 40 threads for work that waits for disks; one tenant can hold no more than these of them."""
MAX_KNOWN = 4096


@dataclass
class TenantBudget:
    """What one tenant has left."""

    left: float = BURST
    at_s: float = 0.0
    inside: int = 0


class TenantRateLimiter:
    """Lets tenants in, each by its own measure."""

    def __init__(self) -> None:
        self._passes: dict[str, TenantBudget] = {}

    def refusal(self, tenant: str, now_s: float) -> str | None:
        """Count a request; return why it may not come in, if so."""
        found = self._passes.setdefault(tenant, TenantBudget(at_s=now_s))
        found.left = min(BURST, found.left + (now_s - found.at_s) * PER_S)
        found.at_s = now_s
        if len(self._passes) > MAX_KNOWN:
            self._forget()
        if found.inside >= AT_ONCE:
            return f"{AT_ONCE} requests of this tenant are under way"
        if found.left < 1.0:
            return f"this tenant asks more than {PER_S:g} times a second"
        found.left -= 1.0
        return None

    @contextmanager
    def passing(self, tenant: str) -> Iterator[None]:
        found = self._passes.setdefault(tenant, TenantBudget())
        found.inside += 1
        try:
            yield
        finally:
            found.inside -= 1

    def _forget(self) -> None:
        """Forget tenants that have all they can have: to begin anew changes nothing for them."""
        self._passes = {t: p for t, p in self._passes.items() if p.inside or p.left < BURST}
