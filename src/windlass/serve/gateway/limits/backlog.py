"""What one gateway has under way at one version of a model, as one line before a single reader of prompts.

Engines read prompts one after another, more or less, so the time from one first token to the next is how long
a prompt took. Where a version has several replicas, it is what they take together.

Of several tenants they read in turns, so a request does not wait for all that one other tenant has sent, but
for as much of each other's as is read of its own tenant's, itself included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from windlass.serve.gateway.limits.estimate import START_TOKENS, EngineSpeed
from windlass.serve.gateway.limits.request_cost import RequestCost


@dataclass
class Backlog:
    """What this gateway has under way at one version, and how quickly it goes."""

    pace: EngineSpeed = field(default_factory=EngineSpeed)
    answers: int = 0
    unread: int = 0
    unread_tokens: int = 0
    """Requests without a first token yet, and their prompts."""
    unread_of: Counter[str] = field(default_factory=Counter)
    """Those prompts by tenant."""
    read_at: float = 0.0
    """When all prompts will be read, if engines go on as they did."""
    began_at: float = 0.0
    """When a first token came last."""

    def came(self, wish: RequestCost, now: float, tenant: str = "") -> None:
        self.answers += wish.answers
        self.unread += 1
        self.unread_tokens += wish.prompt_tokens
        self.unread_of[tenant] += wish.prompt_tokens
        self.read_at = max(now, self.read_at) + self.pace.reading_s(wish.prompt_tokens)

    def began(
        self, asked_at: float, wish: RequestCost, now: float, *, has_slot: bool, tenant: str = ""
    ) -> None:
        """Note a first token: its prompt was read since it came, or since the one before it was."""
        if has_slot:  # otherwise the time says more about others' answers than about this prompt
            self.pace.began(now - max(asked_at, self.began_at), wish.prompt_tokens)
        self.began_at = now
        self.read(wish, tenant)

    def read(self, wish: RequestCost, tenant: str = "") -> None:
        """Wait for one request less."""
        self.unread -= 1
        self.unread_tokens -= wish.prompt_tokens
        self.unread_of[tenant] -= wish.prompt_tokens
        if not self.unread_of[tenant]:
            del self.unread_of[tenant]
        if not self.unread:
            self.read_at = 0.0

    def unread_s(self, now: float) -> float:
        """Return how long prompts are read yet; where that is late, all but one are not begun with."""
        if not self.unread:
            return 0.0
        surely = self.unread_tokens * (self.unread - 1) / self.unread * self.pace.read_s.value
        return max(self.read_at - now, surely)

    def share_before(self, tenant: str, prompt_tokens: int) -> float:
        """Return the part of what is unread that is read before a prompt of a tenant."""
        own = self.unread_of.get(tenant, 0)
        turns = own + prompt_tokens + START_TOKENS
        before = own + sum(min(each, turns) for other, each in self.unread_of.items() if other != tenant)
        return min(1.0, before / self.unread_tokens) if self.unread_tokens > 0 else 1.0
