"""Rate and concurrency limits per tenant for the control API, so that one tenant cannot block the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PER_S = 50.0
BURST = 100.0
AT_ONCE = 8
"""Concurrent requests per tenant; the API has 40 threads for blocking work."""
MAX_KNOWN = 4096


@dataclass
class TenantBudget:
    """A tenant's token bucket and its requests in progress."""

    left: float = BURST
    at_s: float = 0.0
    inside: int = 0


class TenantRateLimiter:
    """Limits requests, separately for each tenant."""

    def __init__(self) -> None:
        self._budgets: dict[str, TenantBudget] = {}

    def refusal(self, tenant: str, now_s: float) -> str | None:
        """Count a request; return why it is refused, or None."""
        found = self._budgets.setdefault(tenant, TenantBudget(at_s=now_s))
        found.left = min(BURST, found.left + (now_s - found.at_s) * PER_S)
        found.at_s = now_s
        if len(self._budgets) > MAX_KNOWN:
            self._forget()
        if found.inside >= AT_ONCE:
            return f"this tenant already has {AT_ONCE} requests in progress"
        if found.left < 1.0:
            return f"this tenant sends more than {PER_S:g} requests a second"
        found.left -= 1.0
        return None

    @contextmanager
    def counted(self, tenant: str) -> Iterator[None]:
        found = self._budgets.setdefault(tenant, TenantBudget())
        found.inside += 1
        try:
            yield
        finally:
            found.inside -= 1

    def _forget(self) -> None:
        """Forget tenants with a full bucket: a new bucket is the same."""
        self._budgets = {t: b for t, b in self._budgets.items() if b.inside or b.left < BURST}
