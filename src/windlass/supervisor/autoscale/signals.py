"""Turns gateways' reports into signals: how long requests wait, and the time to first token."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from windlass.spec.protocol.routing import AnswerOutcome

WINDOW_S = 30.0
MIN_ANSWERS = 5
"""Fewer answers give no 95th percentile."""
LATE = 0.95


class AnswerWindow:
    """The answers of one version in the last WINDOW_S."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque()
        self._since: float | None = None

    def take(self, outcomes: Iterable[AnswerOutcome], now: float) -> None:
        """Record ended answers; shadow copies do not count."""
        if self._since is None:
            self._since = now
        self._ended.extend((now, each.first_token_s) for each in outcomes if not each.shadow)
        while self._ended and now - self._ended[0][0] > WINDOW_S:
            self._ended.popleft()

    def queue_s(self, waiting: int, now: float) -> float:
        """Return how long a new request will wait if answers end at the recent rate (Little's law)."""
        if not waiting or self._since is None:
            return 0.0
        watched_s = min(WINDOW_S, now - self._since)
        if not self._ended:
            return watched_s
        return waiting * max(watched_s, 1.0) / len(self._ended)

    def first_token_s(self) -> float:
        """Return the 95th percentile of the time to first token; 0 if there were too few answers."""
        times = sorted(first_s for _, first_s in self._ended if first_s > 0)
        if len(times) < MIN_ANSWERS:
            return 0.0
        return times[min(len(times) - 1, math.ceil(LATE * len(times)) - 1)]
