"""Turns the bytes of a body into a checked request, or into one clear refusal.

Input: an HTTP request. Output: an instance of a model of messages.py.
Order matters: size, type and syntax are settled before a value is looked at, and every value before a
token is made, so that a bad request costs no more than reading it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from windlass.serve.gateway.errors import ApiError, shown
from windlass.serve.gateway.messages import ELSEWHERE, Asked, Unsupported
from windlass.spec.errors import did_you_mean

MOST_BODY_BYTES = 8 << 20
BODY_TIMEOUT_S = 30.0

A = TypeVar("A", bound=Asked)

_json = msgspec.json.Decoder()
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"
)
_NOT_A_NAME = re.compile(r"\W")
_UNION_ARMS = {"str", "int", "float", "bool", "none", "nullable"}


async def read(request: Request, model: type[A]) -> A:
    """Read and check the body of a request."""
    _check_type(request)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_bytes(request)
    except TimeoutError:
        raise ApiError("body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    return check(model, parse(body))


def parse(body: bytes) -> dict[str, Any]:
    """Decode JSON strictly: UTF-8, no NaN, no lone surrogates, one object, bounded depth."""
    try:
        body.decode("utf-8")
        value = _json.decode(body)
    except UnicodeDecodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ApiError("invalid_json", "the body is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ApiError("invalid_json", _syntax(body, str(error))) from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", f"the body must be a JSON object, not {shown(value)}")
    return value


def check(model: type[A], value: dict[str, Any]) -> A:
    """Check an object against a model; the most specific mistake becomes the refusal."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise _explain(model, max(details, key=_telling))


def _telling(detail: ErrorDetails) -> tuple[int, int]:
    """Rank a mistake: the deeper the more specific; a misspelt name explains a missing one."""
    rank = {"missing": 0, "extra_forbidden": 1}
    return len(detail["loc"]), rank.get(detail["type"], 2)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            "unsupported_media_type",
            f"Content-Type is {shown(kind)}; it must be application/json"
            if kind
            else "Content-Type is missing",
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MOST_BODY_BYTES:
        raise _too_large()


async def _read_bytes(request: Request) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MOST_BODY_BYTES:
            raise _too_large()
        pieces.append(piece)
    return b"".join(pieces)


def _too_large() -> ApiError:
    return ApiError("body_too_large", f"the body is larger than {MOST_BODY_BYTES} bytes")


def _syntax(body: bytes, reason: str) -> str:
    surrogate = _LONE_SURROGATE.search(body)
    if surrogate is not None:
        return f"half of a surrogate pair at byte {surrogate.start()} of the body"
    if "truncated" in reason:
        return f"the body ends at byte {len(body)}, in the middle of the JSON"
    if "out of range" in reason:
        return "a number in the body is too large to be represented"
    place = re.search(r"\(byte (\d+)\)", reason)
    what = reason.partition(": ")[2].partition(" (byte")[0] or "something is wrong"
    return f"the body is not valid JSON at byte {place.group(1) if place else '?'}: {what}"


def _explain(model: type[Asked], detail: ErrorDetails) -> ApiError:
    """Say a mistake in the words of the API, not of the validator."""
    name = _name(detail["loc"], keep_last=detail["type"] == "extra_forbidden")
    if detail["type"] == "extra_forbidden":
        return _unknown(model, detail["loc"], name)
    if _is_unsupported(model, detail["loc"]):
        return ApiError("unsupported_parameter", f"'{name}' is not supported here; leave it out", param=name)
    if detail["type"] == "missing":
        return ApiError("missing_parameter", f"'{name}' is missing", param=name)
    reason = _reason(detail)
    if not name:
        return ApiError("invalid_value", reason, param=_quoted(reason))
    if detail["type"] == "value_error":
        return ApiError("invalid_value", f"'{name}' {reason}", param=name)
    return ApiError("invalid_value", f"'{name}' is {shown(detail['input'])}; {reason}", param=name)


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


def _unknown(model: type[Asked], loc: tuple[int | str, ...], name: str) -> ApiError:
    key = str(loc[-1])
    if key in ELSEWHERE:
        return ApiError("unsupported_parameter", f"'{name}' is not supported here; leave it out", param=name)
    owner = _owner(model, loc)
    usable = [
        entry.alias or field
        for field, entry in owner.model_fields.items()
        if not _is_unsupported(owner, (field,))
    ]
    return ApiError(
        "unknown_parameter", f"'{name}' is unknown; {did_you_mean(key[:100], usable)}", param=name
    )


def _name(loc: tuple[int | str, ...], *, keep_last: bool) -> str:
    """Write a place as messages[0].content, leaving out the validator's names of union arms."""
    name = ""
    for place, part in enumerate(loc, start=1):
        if isinstance(part, int):
            name += f"[{part}]"
        elif (keep_last and place == len(loc)) or not (_NOT_A_NAME.search(part) or part in _UNION_ARMS):
            name += f".{part}" if name else part
    return name


def _quoted(reason: str) -> str | None:
    """Return the parameter that a rule about several of them names first."""
    found = re.match(r"'(\w+)'", reason)
    return found.group(1) if found else None


def _is_unsupported(model: type[BaseModel], loc: tuple[int | str, ...]) -> bool:
    at: type[BaseModel] | None = model
    for part in loc:
        field = at.model_fields.get(part) if at is not None and isinstance(part, str) else None
        if field is None:
            continue
        if any(isinstance(mark, Unsupported) for mark in field.metadata):
            return True
        at = _model_in(field.annotation)
    return False


def _owner(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    at = model
    for part in loc[:-1]:
        field = at.model_fields.get(part) if isinstance(part, str) else None
        inner = _model_in(field.annotation) if field is not None else None
        at = inner or at
    return at


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model that an annotation such as list[ChatMessage] or StreamOptions | None speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)
