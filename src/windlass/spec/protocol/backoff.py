"""Exponential back-off, by which every process waits between attempts."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DOUBLINGS = 30


@dataclass(frozen=True)
class Backoff:
    """Waits that double from `first_s` up to `max_s`."""

    first_s: float
    max_s: float

    def wait_s(self, failures: int, draw: float = 1.0) -> float:
        """Return the wait after `failures` failed attempts in a row; 0 after none.

        With jitter, `draw` is a random number from [0, 1): the wait is between half and the whole of that
        without jitter.
        """
        if failures <= 0:
            return 0.0
        whole_s = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS))
        return whole_s * (0.5 + draw / 2)
