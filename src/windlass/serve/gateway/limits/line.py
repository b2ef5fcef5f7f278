"""What one gateway has under way at one version of a model, as one line before a single reader of prompts.

Engines read prompts one after another, more or less, so the time from one first token to the next is how long
a prompt took. Where a version has several replicas, it is what they take together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.serve.gateway.admission import Wish
from windlass.serve.gateway.limits.estimate import Pace


@dataclass
class Line:
    """What this gateway has under way at one version, and how quickly it goes."""

    pace: Pace = field(default_factory=Pace)
    answers: int = 0
    unread: int = 0
    unread_tokens: int = 0
    """Requests without a first token yet, and their prompts."""
    read_at: float = 0.0
    """When all prompts will be read, if engines go on as they did."""
    began_at: float = 0.0
    """When a first token came last."""

    def came(self, wish: Wish, now: float) -> None:
        self.answers += wish.answers
        self.unread += 1
        self.unread_tokens += wish.prompt_tokens
        self.read_at = max(now, self.read_at) + self.pace.reading_s(wish.prompt_tokens)

    def began(self, asked_at: float, wish: Wish, now: float, *, has_slot: bool) -> None:
        """Note a first token: its prompt was read since it came, or since the one before it was."""
        if has_slot:  # otherwise the time says more about others' answers than about this prompt
            self.pace.began(now - max(asked_at, self.began_at), wish.prompt_tokens)
        self.began_at = now
        self.read(wish)

    def read(self, wish: Wish) -> None:
        """Wait for one request less."""
        self.unread -= 1
        self.unread_tokens -= wish.prompt_tokens
        if not self.unread:
            self.read_at = 0.0

    def unread_s(self, now: float) -> float:
        """Return how long prompts are read yet; where that is late, all but one are not begun with."""
        if not self.unread:
            return 0.0
        surely = self.unread_tokens * (self.unread - 1) / self.unread * self.pace.read_s.value
        return max(self.read_at - now, surely)
