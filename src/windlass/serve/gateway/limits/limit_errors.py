"""What a caller that is not let in is told: which limit, how much of it is used, when to ask again."""

from __future__ import annotations

from windlass.http.errors import ApiError
from windlass.serve.gateway.limits.estimate import WaitEstimate
from windlass.serve.gateway.limits.quota_client import Short
from windlass.serve.gateway.limits.request_cost import RequestCost
from windlass.serve.records.bucket import Kind
from windlass.spec.units import format_seconds

KINDS: dict[Kind, tuple[str, str, str]] = {
    "requests": ("rate_limited", "requests_per_second", "requests at once"),
    "tokens_minute": ("rate_limited", "tokens_per_minute", "tokens a minute"),
    "tokens_day": ("quota_exhausted", "tokens_per_day", "tokens a day"),
    "concurrent": ("too_many_concurrent", "concurrent", "requests under way"),
    "queue": ("queue_full", "queue", "requests waiting"),
    "queue_tokens": ("queue_full", "queue_tokens", "tokens waiting"),
}
"""For each kind of budget: the code, the name of the limit, and what it counts."""
SOON_S = 1.0
"""Where nobody can tell when room will be: ask again after this."""


def short(error: Short) -> ApiError:
    """Say which budget lacks what."""
    part = error.part
    code, limit, what = KINDS[part.name.kind]
    whose = whose_of(part.name.scope)
    if part.amount > part.rule.most:
        return ApiError(
            "invalid_value",
            f"the request may take {part.amount:.0f} of {limit}, and {whose} has {part.rule.most:.0f} in all"
            " (prompt and max_tokens count together); ask for less",
            param="max_tokens",
        )
    if error.away:
        return away()
    wait_s = SOON_S if error.free_in_s is None else error.free_in_s
    message = (
        f"{limit} of {whose}: {max(0.0, error.used):.0f} of {part.rule.most:.0f} {what} are taken, "
        f"{part.amount:.0f} more are asked for; ask again in {format_seconds(max(wait_s, 0.001))}"
    )
    return ApiError(code, message, retry_after_s=wait_s)


def away() -> ApiError:
    """Say that limits cannot be kept without their database, so nothing is let in that has some."""
    return ApiError(
        "state_unavailable",
        "the database of limits does not answer; try again shortly",
        retry_after_s=SOON_S,
    )


def no_time(estimate: WaitEstimate, max_s: float) -> ApiError:
    """Say that too many are waiting."""
    return ApiError(
        "queue_full",
        f"this would wait {format_seconds(estimate.wait_s)} for others, and nobody waits more than"
        f" {format_seconds(max_s)} here; try again shortly",
        retry_after_s=max(SOON_S, estimate.wait_s - max_s),
    )


def too_late(estimate: WaitEstimate, deadline_s: float) -> ApiError:
    """Say that a deadline cannot be kept."""
    return ApiError(
        "deadline_unreachable",
        f"the answer would take about {format_seconds(estimate.whole_s)} ({format_seconds(estimate.first_s)}"
        f" to its first token), and its deadline is in {format_seconds(deadline_s)}",
        retry_after_s=max(SOON_S, estimate.wait_s),
    )


def less(level: int, wish: RequestCost, calm_s: float) -> ApiError | None:
    """Return why a request is not taken at a level of the ladder; None if it is."""
    if level >= 4 and wish.priority <= 0:
        return _overloaded(level, "only requests with a priority above 0 are taken", calm_s)
    if level >= 3 and wish.priority < 0:
        return _overloaded(level, "requests with a priority below 0 are not taken", calm_s)
    if level >= 2 and wish.answers > 1:
        return _overloaded(level, f"one answer a request is made, not {wish.answers}", calm_s)
    if level >= 2 and wish.alternatives > 0:
        return _overloaded(level, "no alternatives are reported beside tokens (logprobs)", calm_s)
    return None


def whose_of(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return {"all": "everybody together", "tenant": f"tenant '{name}'", "key": f"key '{name}'"}[kind]


def _overloaded(level: int, what: str, calm_s: float) -> ApiError:
    return ApiError("overloaded", f"the service is at brown-out level {level}: {what}", retry_after_s=calm_s)
