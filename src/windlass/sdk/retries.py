"""Whether and when to retry. Pure: the failure, the time left and a random number are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.sdk.failures import ApiFailure, DeadlinePassed, Unreachable
from windlass.spec.protocol.backoff import Backoff

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
"""Temporary refusals before any work was done: any request may be retried after them."""

UNLUCKY = frozenset({"internal", "engine_failed"})
"""Failures during the work, which may succeed on a retry."""

ELSEWHERE = frozenset({"deadline_unreachable"})
"""Waiting does not help here, but another site may be faster."""

PROXY = frozenset({429, 502, 503, 504})
"""Temporary statuses of a proxy in front of a Windlass server."""


@dataclass(frozen=True)
class Retries:
    """How often to try, and how long to wait in between.

    `tries` limits failed tries in a row; a stream that delivers new text in between counts from 0 again.
    Waits double from `first_wait_s` to `max_wait_s`; a Retry-After of more than `patience_s` is raised at
    once.

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
    """Return how long to wait before the next try, or None if there is none.

    `repeats`: the request may be sent twice without harm. `elsewhere`: another site has not been tried yet,
    so there is no need to wait. A wait that would outlast the deadline is not begun.
    """
    if tried >= policy.tries or not is_passing(failure, repeats=repeats, elsewhere=elsewhere):
        return None
    wait_s = 0.0 if elsewhere else wait_after(policy, failure, tried, draw)
    server_wait_s = failure.retry_after_s or 0.0
    if not elsewhere and server_wait_s > policy.patience_s:
        return None
    return None if left_s is not None and wait_s >= left_s else wait_s


def wait_after(policy: Retries, failure: ApiFailure, tried: int, draw: float) -> float:
    """Return a wait between half and the whole of the back-off, and never less than Retry-After.

    Retry-After gets some jitter, so that clients that received the same value do not return at once.
    """
    wait_s = Backoff(policy.first_wait_s, policy.max_wait_s).wait_s(tried, draw)
    server_wait_s = failure.retry_after_s or 0.0
    return max(wait_s, server_wait_s + policy.first_wait_s * draw if server_wait_s else 0.0)


def is_passing(failure: ApiFailure, *, repeats: bool = True, elsewhere: bool = False) -> bool:
    """Return whether the same request may succeed later, or at another site."""
    if isinstance(failure, Unreachable):
        return repeats or not failure.sent
    if failure.code in ELSEWHERE:
        return elsewhere
    if isinstance(failure, DeadlinePassed):
        return False
    if failure.code in UNLUCKY:
        return repeats
    return failure.code in PASSING or (failure.code is None and failure.status in PROXY)
