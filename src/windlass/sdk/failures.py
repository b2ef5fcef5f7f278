"""Every error that a client raises, as the server told it.

    WindlassError
    `-- ApiFailure                 whatever a server, or the way to it, did not do; has all that was told
        |-- ServiceFailed          not there, too busy, or could not finish
        |   |-- Unreachable        no connection, or one that broke
        |   |-- DeadlinePassed     not done in the time that was given
        |   `-- AnswerDiffers      a repeated answer is not the one that was begun
        `-- RequestRefused         also AskedWrongly: asking differently helps
            |-- NotAllowed         no key, a revoked one, or one without the scope
            |-- NotThere           also NotFound: a model, run or path that does not exist
            `-- ConflictingChange  also InUse: somebody else changes the same thing

What the server refuses is raised as the error that a local call would raise. Programs branch on `code`
(docs/formats/api-errors.md), people read the message and the hint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from windlass.spec.errors import AskedWrongly, InUse, NotFound, WindlassError

NO_KEY = "give key=..., or set WINDLASS_KEY; `windlass keys make` makes one"


@dataclass(frozen=True)
class ErrorDetails:
    """What the error envelope says beside the message; None where a server said nothing."""

    status: int | None = None
    code: str | None = None
    param: str | None = None
    path: str | None = None
    allowed: Mapping[str, Any] | None = None
    corrected: Mapping[str, Any] | None = None
    doc_url: str | None = None
    request_id: str | None = None
    retry_after_s: float | None = None


class ApiFailure(WindlassError):
    """A call that was not answered."""

    def __init__(self, message: str, *, hint: str | None = None, told: ErrorDetails | None = None) -> None:
        super().__init__(message, hint=hint)
        self.told = told or ErrorDetails()

    @property
    def status(self) -> int | None:
        """The HTTP status, where there was one."""
        return self.told.status

    @property
    def code(self) -> str | None:
        """One of the codes of docs/formats/api-errors.md: never renamed."""
        return self.told.code

    @property
    def param(self) -> str | None:
        """The place in the request: messages[0].content."""
        return self.told.param

    @property
    def allowed(self) -> Mapping[str, Any] | None:
        """What may stand there, in keywords of JSON Schema."""
        return self.told.allowed

    @property
    def corrected(self) -> Mapping[str, Any] | None:
        """A whole body that would be accepted, where that is sure."""
        return self.told.corrected

    @property
    def doc_url(self) -> str | None:
        """The page about the code, on the server."""
        return self.told.doc_url

    @property
    def request_id(self) -> str | None:
        """By which the server's logs know the request."""
        return self.told.request_id

    @property
    def retry_after_s(self) -> float | None:
        """How long the server asked to wait."""
        return self.told.retry_after_s


class ServiceFailed(ApiFailure):
    """The server is not there, is too busy, or could not finish."""


class Unreachable(ServiceFailed):
    """No connection, or one that broke; `sent` when the request may have arrived."""

    def __init__(self, message: str, *, hint: str | None = None, sent: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


class DeadlinePassed(ServiceFailed):
    """The time that was given for a call, all its tries included, is over."""


class AnswerDiffers(ServiceFailed):
    """An answer that broke off cannot be gone on with: asked again, it begins otherwise."""


class RequestRefused(ApiFailure, AskedWrongly):
    """The server does not do this; asking differently helps."""


class NotAllowed(RequestRefused):
    """No key, one that is revoked or expired, or one that may not do this."""


class NotThere(RequestRefused, NotFound):
    """A model, a run or a path that does not exist."""


class ConflictingChange(RequestRefused, InUse):
    """Somebody else is changing the same thing."""


def failure_of(status: int, headers: Mapping[str, str], body: bytes, url: str) -> ApiFailure:
    """Turn an answer that is none into the error of our tree that means the same."""
    told = ErrorDetails(status=status, retry_after_s=_seconds(headers.get("retry-after")))
    try:
        envelope = json.loads(body)["error"]
        str(envelope["message"])
    except (ValueError, KeyError, TypeError):
        return ServiceFailed(f"{url}: answered {status}, and not as Windlass does", told=told)
    return failure_from_body(envelope, told, url)


def failure_from_body(envelope: Mapping[str, Any], told: ErrorDetails, url: str) -> ApiFailure:
    """Read the envelope of an answer, or of the last event of a stream, whose status is not known."""
    told = replace(
        told,
        code=_text(envelope.get("code")),
        param=_text(envelope.get("param")),
        path=_text(envelope.get("path")),
        allowed=_table(envelope.get("allowed")),
        corrected=_table(envelope.get("corrected")),
        doc_url=_page(url, envelope.get("doc_url")),
        request_id=_text(envelope.get("request_id")),
    )
    message, hint = str(envelope["message"]), _text(envelope.get("hint"))
    kind = _kind(told)
    if kind is NotAllowed and told.status != 403:
        hint = hint or NO_KEY
    if kind is ServiceFailed:
        hint = hint or "try again shortly"
    return kind(message, hint=hint, told=told)


def _kind(told: ErrorDetails) -> type[ApiFailure]:
    if told.code in ("deadline_exceeded", "deadline_unreachable"):
        return DeadlinePassed
    if told.code in ("unauthorized", "forbidden") or told.status in (401, 403):
        return NotAllowed
    if told.status is None or told.status == 429 or told.status >= 500:
        return ServiceFailed
    kinds: dict[int, type[ApiFailure]] = {404: NotThere, 409: ConflictingChange}
    return kinds.get(told.status, RequestRefused)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _table(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _page(url: str, path: object) -> str | None:
    """Make the address of a page whole; the server names it by its path."""
    if not isinstance(path, str):
        return None
    return url + path if path.startswith("/") else path


def _seconds(value: str | None) -> float | None:
    """Read Retry-After; a date, which our servers never send, is left aside."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
