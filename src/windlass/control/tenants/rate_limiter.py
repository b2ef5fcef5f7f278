"""Rate and concurrency limits per tenant for the control API, so that one tenant cannot block the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from windlass.http.token_bucket import TokenBucket

PER_S = 50.0
BURST = 100.0
AT_ONCE = 8
"""Concurrent requests per tenant; the API has 40 threads for blocking work."""
MAX_KNOWN = 4096


@dataclass
class TenantBudget:
    """The requests that a tenant may still send, and those in progress."""

    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, PER_S))
    inside: int = 0


class TenantRateLimiter:
    """Limits requests, separately for each tenant."""

    def __init__(self) -> None:
        self._budgets: dict[str, TenantBudget] = {}

    def refusal(self, tenant: str, now_s: float) -> str | None:
        """Count a request; return why it is refused, or None."""
        if tenant not in self._budgets and len(self._budgets) >= MAX_KNOWN:
            self._forget(now_s)
        found = self._budgets.setdefault(tenant, TenantBudget())
        if found.inside >= AT_ONCE:
            return f"this tenant already has {AT_ONCE} requests in progress"
        if not found.bucket.take(now_s):
            return f"this tenant sends more than {PER_S:g} requests a second"
        return None

    @contextmanager
    def counted(self, tenant: str) -> Iterator[None]:
        found = self._budgets.setdefault(tenant, TenantBudget())
        found.inside += 1
        try:
            yield
        finally:
            found.inside -= 1

    def _forget(self, now_s: float) -> None:
        """Forget idle tenants: their next budget is the same."""
        self._budgets = {
            tenant: budget
            for tenant, budget in self._budgets.items()
            if budget.inside or not budget.bucket.is_full(now_s)
        }
