"""Repairs one mistake in a request body: corrects a name, drops a parameter, moves a value into its range.

It never guesses; the caller validates the result before it is sent to a client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.http.errors import ApiError
from windlass.spec.errors import nearest

MAX_BYTES = 4096
"""Larger bodies are not sent back to the client."""
MAX_PARTS = 512
"""Bodies with more values are not copied at all."""

KEEP = object()


def small_copy(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy to repair, or None if the body is too large to be sent back."""
    if _parts(body, MAX_PARTS) <= 0:
        return None
    written = msgspec.json.encode(body)
    copy: dict[str, Any] = msgspec.json.decode(written)
    return copy if len(written) <= MAX_BYTES else None


def with_correction(error: ApiError, body: dict[str, Any] | None) -> ApiError:
    """Add a corrected body to an error that came after the body was validated.

    Such an error names a parameter and what is allowed: names of models, or the tokens that the context
    leaves.
    """
    if error.corrected is None and error.allowed and error.param and body is not None:
        better = small_copy(body)
        if better is not None and repair_at(better, (error.param,), allowed=error.allowed):
            error.corrected = better
    return error


def repair_at(
    body: dict[str, Any],
    keys: tuple[int | str, ...],
    *,
    rename: str | object | None = KEEP,
    allowed: dict[str, Any] | None = None,
) -> bool:
    """Repair the value at a place; return whether that was possible. A rename to None drops it."""
    holder = _holder(body, keys)
    if holder is None:
        return False
    key = keys[-1]
    if rename is KEEP:
        better = _nearest_allowed(holder[key], allowed or {})
        if better is None:
            return False
        holder[key] = better
        return True
    value = holder.pop(key)
    if isinstance(rename, str):
        holder.setdefault(rename, value)
    return True


def _holder(body: Any, keys: tuple[int | str, ...]) -> Any:
    """Return the object or list that holds the last key, if there is one."""
    for part in keys[:-1]:
        if not _has(body, part):
            return None
        body = body[part]
    return body if keys and _has(body, keys[-1]) else None


def _has(value: Any, part: int | str) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and 0 <= part < len(value)
    return isinstance(value, dict) and part in value


def _nearest_allowed(value: Any, allowed: dict[str, Any]) -> Any:
    """Return the nearest allowed value, or None."""
    if "const" in allowed:
        return allowed["const"]
    if "enum" in allowed and isinstance(value, str):
        names = allowed["enum"]
        return names[0] if len(names) == 1 else nearest(value[:100], names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    minimum, maximum = (
        _bound(allowed, "minimum", "exclusiveMinimum", 1),
        _bound(allowed, "maximum", "exclusiveMaximum", -1),
    )
    if minimum is not None and value < minimum:
        return minimum
    return maximum if maximum is not None and value > maximum else None


def _bound(allowed: dict[str, Any], closed: str, open_: str, step: int) -> float | None:
    """Return the last allowed number of a range; an open range of real numbers has none."""
    if closed in allowed:
        end: float = allowed[closed]
        return end
    is_whole = allowed.get("type") == "integer" and open_ in allowed
    return allowed[open_] + step if is_whole else None


def _parts(value: Any, budget: int) -> int:
    """Subtract the number of values from a budget; stop when it is used up."""
    budget -= 1
    if isinstance(value, str):
        return budget - len(value) // (MAX_BYTES // MAX_PARTS)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        if budget <= 0:
            return budget
        budget = _parts(part, budget)
    return budget
