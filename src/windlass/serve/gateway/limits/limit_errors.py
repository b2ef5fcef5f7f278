"""The errors of refused requests: which limit, how much of it is used, when to retry."""

from __future__ import annotations

from windlass.http.errors import ApiError
from windlass.serve.gateway.limits.estimate import WaitEstimate
from windlass.serve.gateway.limits.quota_client import QuotaExceeded
from windlass.serve.gateway.limits.request_cost import RequestCost
from windlass.serve.records.bucket import Kind
from windlass.spec.units import format_seconds

KINDS: dict[Kind, tuple[str, str, str]] = {
    "requests": ("rate_limited", "requests_per_second", "requests at once"),
    "tokens_minute": ("rate_limited", "tokens_per_minute", "tokens a minute"),
    "tokens_day": ("quota_exhausted", "tokens_per_day", "tokens a day"),
    "concurrent": ("too_many_concurrent", "concurrent", "concurrent requests"),
    "queue": ("queue_full", "queue", "requests waiting"),
    "queue_tokens": ("queue_full", "queue_tokens", "tokens waiting"),
}
"""For each kind of budget: the error code, the name of the limit, and what it counts."""
SOON_S = 1.0
"""Retry time where it is unknown when capacity will be free."""


def quota_exceeded(error: QuotaExceeded) -> ApiError:
    """Return the error of a budget that has too little left."""
    part = error.part
    code, limit, what = KINDS[part.name.kind]
    owner = owner_of(part.name.scope)
    if part.amount > part.rule.capacity:
        return ApiError(
            "invalid_value",
            f"the request may use {part.amount:.0f} of {limit}, but {owner} has {part.rule.capacity:.0f}"
            " in total (prompt and max_tokens count together); reduce max_tokens",
            param="max_tokens",
        )
    if error.away:
        return database_unavailable()
    wait_s = SOON_S if error.free_in_s is None else error.free_in_s
    message = (
        f"{limit} of {owner}: {max(0.0, error.used):.0f} of {part.rule.capacity:.0f} {what} are used, "
        f"this request needs {part.amount:.0f}; retry in {format_seconds(max(wait_s, 0.001))}"
    )
    return ApiError(code, message, retry_after_s=wait_s)


def database_unavailable() -> ApiError:
    """Return the error of a database that does not answer: callers with limits are refused."""
    return ApiError(
        "state_unavailable",
        "the database of limits does not answer; try again shortly",
        retry_after_s=SOON_S,
    )


def queue_full(estimate: WaitEstimate, max_s: float) -> ApiError:
    """Return the error of a wait above the maximum."""
    return ApiError(
        "queue_full",
        f"this request would wait {format_seconds(estimate.wait_s)}, more than the maximum of"
        f" {format_seconds(max_s)}; try again shortly",
        retry_after_s=max(SOON_S, estimate.wait_s - max_s),
    )


def no_place(in_progress: int) -> ApiError:
    """Return the error of a request that finds all slots and all places of the queue taken."""
    return ApiError(
        "queue_full",
        f"{in_progress} answers are already running or waiting; try again shortly",
        retry_after_s=SOON_S,
    )


def too_many_answers(wanted: int, places: int) -> ApiError:
    """Return the error of a request for more answers than can ever be made at once."""
    return ApiError("invalid_value", f"{wanted} answers are requested; this server can make {places} at once")


def deadline_unreachable(estimate: WaitEstimate, deadline_s: float) -> ApiError:
    """Return the error of a deadline that is too early."""
    return ApiError(
        "deadline_unreachable",
        f"the answer would take about {format_seconds(estimate.whole_s)} ({format_seconds(estimate.first_s)}"
        f" to its first token), but its deadline is in {format_seconds(deadline_s)}",
        retry_after_s=max(SOON_S, estimate.wait_s),
    )


def excluded_by(level: int, cost: RequestCost, calm_s: float) -> ApiError | None:
    """Return why a brown-out level excludes a request; None if it does not."""
    if level >= 4 and cost.priority <= 0:
        return _overloaded(level, "only requests with a priority above 0 are accepted", calm_s)
    if level >= 3 and cost.priority < 0:
        return _overloaded(level, "requests with a priority below 0 are refused", calm_s)
    if level >= 2 and cost.answers > 1:
        return _overloaded(level, f"a request may have one answer (n = 1), not {cost.answers}", calm_s)
    if level >= 2 and cost.alternatives > 0:
        return _overloaded(level, "alternatives of tokens (logprobs) are not available", calm_s)
    return None


def owner_of(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return {"all": "the whole service", "tenant": f"tenant '{name}'", "key": f"key '{name}'"}[kind]


def _overloaded(level: int, what: str, calm_s: float) -> ApiError:
    return ApiError("overloaded", f"the service is at brown-out level {level}: {what}", retry_after_s=calm_s)
