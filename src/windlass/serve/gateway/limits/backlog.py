"""Estimated prefill backlog of one model version at this gateway, as one FIFO server.

Engines prefill prompts nearly in sequence, so the time between two first tokens is the time of a prefill. If
a version has several replicas, it is their joint rate.

Engines take turns between tenants. So a request does not wait for all prompts of another tenant, but only for
as many tokens of it as its own tenant has waiting, itself included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from windlass.serve.gateway.limits.estimate import START_TOKENS, EngineSpeed
from windlass.serve.gateway.limits.request_cost import RequestCost


@dataclass
class Backlog:
    """The requests in progress at one version, and the speed of its engines."""

    speed: EngineSpeed = field(default_factory=EngineSpeed)
    answers: int = 0
    unread: int = 0
    unread_tokens: int = 0
    """Requests without a first token, and the tokens of their prompts."""
    unread_of: Counter[str] = field(default_factory=Counter)
    """The same tokens by tenant."""
    read_at: float = 0.0
    """When all prompts will be prefilled at the current speed."""
    began_at: float = 0.0
    """The time of the last first token."""

    def came(self, cost: RequestCost, now: float, tenant: str = "") -> None:
        self.answers += cost.answers
        self.unread += 1
        self.unread_tokens += cost.prompt_tokens
        self.unread_of[tenant] += cost.prompt_tokens
        self.read_at = max(now, self.read_at) + self.speed.reading_s(cost.prompt_tokens)

    def began(
        self, arrived_at: float, cost: RequestCost, now: float, *, has_slot: bool, tenant: str = ""
    ) -> None:
        """Note a first token: its prefill began when it arrived, or when the prefill before it ended."""
        if has_slot:  # otherwise it waited for a slot, and the time is not that of its prefill
            self.speed.began(now - max(arrived_at, self.began_at), cost.prompt_tokens)
        self.began_at = now
        self.read(cost, tenant)

    def read(self, cost: RequestCost, tenant: str = "") -> None:
        """Remove one request from the backlog."""
        self.unread -= 1
        self.unread_tokens -= cost.prompt_tokens
        self.unread_of[tenant] -= cost.prompt_tokens
        if not self.unread_of[tenant]:
            del self.unread_of[tenant]
        if not self.unread:
            self.read_at = 0.0

    def unread_s(self, now: float) -> float:
        """Return the seconds until all prompts are prefilled; if overdue, the time of all prompts but one."""
        if not self.unread:
            return 0.0
        surely = self.unread_tokens * (self.unread - 1) / self.unread * self.speed.read_s.value
        return max(self.read_at - now, surely)

    def share_before(self, tenant: str, prompt_tokens: int) -> float:
        """Return the share of the backlog that is prefilled before a new prompt of a tenant."""
        own = self.unread_of.get(tenant, 0)
        turns = own + prompt_tokens + START_TOKENS
        before = own + sum(min(tokens, turns) for other, tokens in self.unread_of.items() if other != tenant)
        return min(1.0, before / self.unread_tokens) if self.unread_tokens > 0 else 1.0
