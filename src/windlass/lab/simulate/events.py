"""A clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

EPOCH_S = 1_000_000.0
"""Start of simulated time: not 0, which could mean "never"."""


class Events:
    """Future events in order of time; events of the same time in the order in which they were planned."""

    def __init__(self) -> None:
        self.now_s = EPOCH_S
        self.count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def clock(self) -> float:
        return self.now_s

    def at(self, at_s: float, what: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._numbers), what, args))

    def after(self, in_s: float, what: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + in_s, what, *args)

    def run_until(self, until_s: float) -> None:
        """Run all events up to a time, and advance the clock to it."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, what, args = heapq.heappop(self._heap)
            self.count += 1
            what(*args)
        self.now_s = until_s
