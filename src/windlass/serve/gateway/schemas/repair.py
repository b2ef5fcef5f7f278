"""Takes one mistake out of a body: a name set right, a parameter dropped, a value moved into its range.

Only what needs no guessing is done; the caller checks the result before anybody sees it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.http.errors import ApiError
from windlass.spec.errors import nearest

MAX_BYTES = 4096
"""Larger bodies are not sent back."""
MAX_PARTS = 512
"""Larger bodies are not even measured."""

KEEP = object()


def small_copy(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy to work on, or None when the body is too large to be sent back."""
    if _parts(body, MAX_PARTS) <= 0:
        return None
    written = msgspec.json.encode(body)
    copy: dict[str, Any] = msgspec.json.decode(written)
    return copy if len(written) <= MAX_BYTES else None


def amended(error: ApiError, body: dict[str, Any] | None) -> ApiError:
    """Add a corrected body to a refusal that came after the body had been found well-formed.

    Such a refusal names a parameter and what is allowed: the names of models, or the room that is left.
    """
    if error.corrected is None and error.allowed and error.param and body is not None:
        better = small_copy(body)
        if better is not None and mended(better, (error.param,), allowed=error.allowed):
            error.corrected = better
    return error


def mended(
    body: dict[str, Any],
    keys: tuple[int | str, ...],
    *,
    rename: str | object | None = KEEP,
    allowed: dict[str, Any] | None = None,
) -> bool:
    """Change the value at a place; tell whether there was a sure way to. A rename to None drops it."""
    holder = _holder(body, keys)
    if holder is None:
        return False
    key = keys[-1]
    if rename is KEEP:
        better = _moved(holder[key], allowed or {})
        if better is None:
            return False
        holder[key] = better
        return True
    value = holder.pop(key)
    if isinstance(rename, str):
        holder.setdefault(rename, value)
    return True


def _holder(body: Any, keys: tuple[int | str, ...]) -> Any:
    """Return the object or list that holds the last key, if the way there exists."""
    for part in keys[:-1]:
        if not _has(body, part):
            return None
        body = body[part]
    return body if keys and _has(body, keys[-1]) else None


def _has(value: Any, part: int | str) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and 0 <= part < len(value)
    return isinstance(value, dict) and part in value


def _moved(value: Any, allowed: dict[str, Any]) -> Any:
    """Return the nearest allowed value, or None."""
    if "const" in allowed:
        return allowed["const"]
    if "enum" in allowed and isinstance(value, str):
        names = allowed["enum"]
        return names[0] if len(names) == 1 else nearest(value[:100], names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    least, most = (
        _end(allowed, "minimum", "exclusiveMinimum", 1),
        _end(allowed, "maximum", "exclusiveMaximum", -1),
    )
    if least is not None and value < least:
        return least
    return most if most is not None and value > most else None


def _end(allowed: dict[str, Any], closed: str, open_: str, step: int) -> float | None:
    """Return the last allowed number of a range; no number of real ones is next to an open end."""
    if closed in allowed:
        end: float = allowed[closed]
        return end
    is_whole = allowed.get("type") == "integer" and open_ in allowed
    return allowed[open_] + step if is_whole else None


def _parts(value: Any, budget: int) -> int:
    """Count values down from a budget, and stop when it is spent."""
    budget -= 1
    if isinstance(value, str):
        return budget - len(value) // (MAX_BYTES // MAX_PARTS)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        if budget <= 0:
            return budget
        budget = _parts(each, budget)
    return budget
