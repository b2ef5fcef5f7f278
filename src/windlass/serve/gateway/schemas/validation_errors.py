"""Turns validation errors into the words of the API, and proposes a corrected request.

Input: pydantic's errors for a body. Output: an ApiError with the place, what is allowed there (in the
keywords of JSON Schema, taken from the model that the OpenAPI document is made from), and, where it is
certain, a whole body that would be accepted. `corrected` bodies have passed the same validator.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from windlass.http.errors import ApiError, shown
from windlass.serve.gateway.schemas.json_schema import allowed_at
from windlass.serve.gateway.schemas.repair import repair_at, small_copy
from windlass.serve.gateway.schemas.requests import ELSEWHERE, Unsupported
from windlass.spec.errors import did_you_mean, nearest

MAX_REPAIRS = 8
"""A body with more mistakes than this was meant for another route."""

Loc = tuple[int | str, ...]

_NOT_A_NAME = re.compile(r"\W")
_UNION_ARMS = {"str", "int", "float", "bool", "none", "nullable"}


def explain(model: type[BaseModel], error: ValidationError) -> ApiError:
    """Return the most specific mistake as an ApiError."""
    detail = _worst(error)
    name = _name(detail["loc"], keep_last=detail["type"] == "extra_forbidden")
    if detail["type"] == "extra_forbidden":
        return _unknown(model, detail["loc"], name)
    if _is_unsupported(model, detail["loc"]):
        return ApiError("unsupported_parameter", f"'{name}' is not supported here; remove it", param=name)
    allowed = allowed_at(model, detail["loc"])
    if detail["type"] == "missing":
        return ApiError("missing_parameter", f"'{name}' is missing", param=name, allowed=allowed)
    reason = _reason(detail)
    if not name:
        return ApiError("invalid_value", reason, param=_quoted(reason))
    if detail["type"] == "value_error":
        return ApiError("invalid_value", f"'{name}' {reason}", param=name, allowed=allowed)
    return ApiError(
        "invalid_value", f"'{name}' is {shown(detail['input'])}; {reason}", param=name, allowed=allowed
    )


def repaired(model: type[BaseModel], body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the body with its mistakes repaired, or None where that would be guessing."""
    better = small_copy(body)
    if better is None:
        return None
    for _ in range(MAX_REPAIRS):
        try:
            model.model_validate(better)
        except ValidationError as error:
            if not _mend(model, better, _worst(error)):
                return None
        else:
            return better
    return None


def _worst(error: ValidationError) -> ErrorDetails:
    return max(error.errors(include_url=False), key=_telling)


def _telling(detail: ErrorDetails) -> tuple[int, int]:
    """Rank a mistake: the deeper the more specific; a misspelt name explains a missing one."""
    rank = {"missing": 0, "extra_forbidden": 1}
    return len(detail["loc"]), rank.get(detail["type"], 2)


def _mend(model: type[BaseModel], body: dict[str, Any], detail: ErrorDetails) -> bool:
    """Repair one mistake: correct the name, drop an unsupported parameter, move a value into its range."""
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(loc[-1])
        close = None if key in ELSEWHERE else nearest(key[:100], usable(_owner(model, loc)))
        return repair_at(body, _keys(loc, keep_last=True), rename=close)
    keys = _keys(loc, keep_last=False)
    if _is_unsupported(model, loc):
        return repair_at(body, keys, rename=None)
    if not keys:
        name = _quoted(_reason(detail))
        field = model.model_fields.get(name or "")
        return field is not None and not field.is_required() and repair_at(body, (name or "",), rename=None)
    return repair_at(body, keys, allowed=allowed_at(model, loc))


def usable(model: type[BaseModel]) -> list[str]:
    """Return the names of the parameters that a model supports."""
    return [
        entry.alias or field
        for field, entry in model.model_fields.items()
        if not _is_unsupported(model, (field,))
    ]


def _reason(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "too_short":
            return f"it must have at least {context['min_length']} entries"
        case "int_type" | "int_from_float":
            return "it must be a whole number"
        case "model_type" | "dict_type":
            return "it must be an object"
        case _:
            return (
                detail["msg"]
                .replace("Input should be a valid", "it must be a")
                .replace("Input should", "it must")
            )


def _unknown(model: type[BaseModel], loc: Loc, name: str) -> ApiError:
    key = str(loc[-1])
    if key in ELSEWHERE:
        return ApiError("unsupported_parameter", f"'{name}' is not supported here; remove it", param=name)
    names = usable(_owner(model, loc))
    message = f"'{name}' is unknown; {did_you_mean(key[:100], names)}"
    return ApiError("unknown_parameter", message, param=name, allowed={"enum": names})


def _keys(loc: Loc, *, keep_last: bool) -> Loc:
    """Return the place in the body, without pydantic's names of union members."""
    last = len(loc) - 1
    return tuple(
        part
        for place, part in enumerate(loc)
        if isinstance(part, int)
        or (keep_last and place == last)
        or not (_NOT_A_NAME.search(part) or part in _UNION_ARMS)
    )


def _name(loc: Loc, *, keep_last: bool) -> str:
    """Format a place as messages[0].content."""
    name = ""
    for part in _keys(loc, keep_last=keep_last):
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _quoted(reason: str) -> str | None:
    """Return the parameter that the message of a rule about several parameters names first."""
    found = re.match(r"'(\w+)'", reason)
    return found.group(1) if found else None


def _is_unsupported(model: type[BaseModel], loc: Loc) -> bool:
    at: type[BaseModel] | None = model
    for part in loc:
        field = at.model_fields.get(part) if at is not None and isinstance(part, str) else None
        if field is None:
            continue
        if any(isinstance(mark, Unsupported) for mark in field.metadata):
            return True
        at = _model_in(field.annotation)
    return False


def _owner(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    at = model
    for part in loc[:-1]:
        field = at.model_fields.get(part) if isinstance(part, str) else None
        inner = _model_in(field.annotation) if field is not None else None
        at = inner or at
    return at


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as list[ChatMessage] or StreamOptions | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)
