"""Whether to try again, and when. Pure: the failure, the time that is left and a random number are given."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.sdk.failures import ApiFailure, DeadlinePassed, Unreachable

PASSING = frozenset(
    {
        "rate_limited",
        "too_many_concurrent",
        "too_many_connections",
        "quota_exhausted",
        "queue_full",
        "overloaded",
        "engine_unavailable",
        "state_unavailable",
        "shutting_down",
        "idempotency_in_progress",
        "in_use",
    }
)
"""Refusals before anything was done, that pass by themselves: any request may be sent again after them."""

UNLUCKY = frozenset({"internal", "engine_failed"})
"""Failures in the middle of the work, which may go well another time."""

ELSEWHERE = frozenset({"deadline_unreachable"})
"""Waiting does not help here, but another site may be quicker."""

PROXY = frozenset({429, 502, 503, 504})
"""Statuses that pass by themselves, from whoever answered in the place of a Windlass server."""


@dataclass(frozen=True)
class Retries:
    """How often to try, and how long to wait in between.

    `tries` counts those in a row that brought nothing; a stream that went on in between counts anew. Waits
    double from `first_wait_s` to `max_wait_s`; a server that asks for more than `patience_s` is not waited
    for.

        Client(url, retries=Retries(tries=1))      # never again
    """

    tries: int = 5
    first_wait_s: float = 0.25
    max_wait_s: float = 8.0
    patience_s: float = 60.0


def decide(
    policy: Retries,
    failure: ApiFailure,
    *,
    tried: int,
    left_s: float | None,
    draw: float,
    repeats: bool = True,
    elsewhere: bool = False,
) -> float | None:
    """Return how long to wait before the next try, or None when there is to be none.

    `repeats` says that the request does no harm when it is sent twice, `elsewhere` that another site has not
    been asked yet: then there is nothing to wait for. A wait that would outlast the deadline is not begun.
    """
    if tried >= policy.tries or not is_passing(failure, repeats=repeats, elsewhere=elsewhere):
        return None
    wait_s = 0.0 if elsewhere else wait_after(policy, failure, tried, draw)
    asked_s = failure.retry_after_s or 0.0
    if not elsewhere and asked_s > policy.patience_s:
        return None
    return None if left_s is not None and wait_s >= left_s else wait_s


def wait_after(policy: Retries, failure: ApiFailure, tried: int, draw: float) -> float:
    """Return a wait between half and the whole of the back-off, and never less than the server asked for.

    What the server asked for is drawn out a little, so that all who heard the same do not come back at once.
    """
    whole_s = min(policy.max_wait_s, policy.first_wait_s * 2.0 ** (tried - 1))
    asked_s = failure.retry_after_s or 0.0
    return max(whole_s * (0.5 + draw / 2), asked_s + policy.first_wait_s * draw if asked_s else 0.0)


def is_passing(failure: ApiFailure, *, repeats: bool = True, elsewhere: bool = False) -> bool:
    """Say whether the same request may be answered another time, or by another site."""
    if isinstance(failure, Unreachable):
        return repeats or not failure.sent
    if failure.code in ELSEWHERE:
        return elsewhere
    if isinstance(failure, DeadlinePassed):
        return False
    if failure.code in UNLUCKY:
        return repeats
    return failure.code in PASSING or (failure.code is None and failure.status in PROXY)
