"""Every error that a client raises.

    WindlassError
    `-- ApiFailure                 a call failed; has all fields of the error reply
        |-- ServiceFailed          the server is down, overloaded, or could not finish
        |   |-- Unreachable        no connection, or a broken one
        |   |-- DeadlinePassed     not finished before the deadline
        |   `-- AnswerDiffers      a repeated answer differs from the one that was begun
        `-- RequestRefused         also AskedWrongly: a different request can succeed
            |-- NotAllowed         no key, a revoked one, or one without the scope
            |-- NotThere           also NotFound: a model, run or path that does not exist
            `-- ConflictingChange  also InUse: another client changes the same thing

A refusal of the server is raised as the error class that a local call would raise. Programs branch on `code`
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
    """The fields of an error reply other than the message; None if the server sent none."""

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
    """A call that failed."""

    def __init__(self, message: str, *, hint: str | None = None, details: ErrorDetails | None = None) -> None:
        super().__init__(message, hint=hint)
        self.details = details or ErrorDetails()

    @property
    def status(self) -> int | None:
        """The HTTP status, if there was a reply."""
        return self.details.status

    @property
    def code(self) -> str | None:
        """One of the codes of docs/formats/api-errors.md: never renamed."""
        return self.details.code

    @property
    def param(self) -> str | None:
        """The place in the request: messages[0].content."""
        return self.details.param

    @property
    def allowed(self) -> Mapping[str, Any] | None:
        """What is valid there, in keywords of JSON Schema."""
        return self.details.allowed

    @property
    def corrected(self) -> Mapping[str, Any] | None:
        """A whole body that would be accepted, if the server is certain of one."""
        return self.details.corrected

    @property
    def doc_url(self) -> str | None:
        """The page about the code, on the server."""
        return self.details.doc_url

    @property
    def request_id(self) -> str | None:
        """Identifies the request in the server's logs."""
        return self.details.request_id

    @property
    def retry_after_s(self) -> float | None:
        """The server's Retry-After, in seconds."""
        return self.details.retry_after_s


class ServiceFailed(ApiFailure):
    """The server is down, overloaded, or could not finish."""


class Unreachable(ServiceFailed):
    """No connection, or a broken one; `sent` if the request may have arrived."""

    def __init__(self, message: str, *, hint: str | None = None, sent: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


class DeadlinePassed(ServiceFailed):
    """The deadline of a call, all its tries included, has passed."""


class AnswerDiffers(ServiceFailed):
    """A broken answer cannot be resumed: the repeated answer differs."""


class RequestRefused(ApiFailure, AskedWrongly):
    """The server refused the request; a different request can succeed."""


class NotAllowed(RequestRefused):
    """No key, one that is revoked or expired, or one that may not do this."""


class NotThere(RequestRefused, NotFound):
    """A model, a run or a path that does not exist."""


class ConflictingChange(RequestRefused, InUse):
    """Another client is changing the same thing."""


def failure_of(status: int, headers: Mapping[str, str], body: bytes, url: str) -> ApiFailure:
    """Turn an error reply into the matching ApiFailure."""
    details = ErrorDetails(status=status, retry_after_s=_seconds(headers.get("retry-after")))
    try:
        envelope = json.loads(body)["error"]
        str(envelope["message"])
    except (ValueError, KeyError, TypeError):
        return ServiceFailed(f"{url}: answered {status}, but is not a Windlass server", details=details)
    return failure_from_body(envelope, details, url)


def failure_from_body(envelope: Mapping[str, Any], details: ErrorDetails, url: str) -> ApiFailure:
    """Read the body of an error reply, or of the last event of a stream, whose status is not known."""
    details = replace(
        details,
        code=_text(envelope.get("code")),
        param=_text(envelope.get("param")),
        path=_text(envelope.get("path")),
        allowed=_table(envelope.get("allowed")),
        corrected=_table(envelope.get("corrected")),
        doc_url=_page(url, envelope.get("doc_url")),
        request_id=_text(envelope.get("request_id")),
    )
    message, hint = str(envelope["message"]), _text(envelope.get("hint"))
    kind = _kind(details)
    if kind is NotAllowed and details.status != 403:
        hint = hint or NO_KEY
    if kind is ServiceFailed:
        hint = hint or "try again shortly"
    return kind(message, hint=hint, details=details)


def _kind(details: ErrorDetails) -> type[ApiFailure]:
    if details.code in ("deadline_exceeded", "deadline_unreachable"):
        return DeadlinePassed
    if details.code in ("unauthorized", "forbidden") or details.status in (401, 403):
        return NotAllowed
    if details.status is None or details.status == 429 or details.status >= 500:
        return ServiceFailed
    kinds: dict[int, type[ApiFailure]] = {404: NotThere, 409: ConflictingChange}
    return kinds.get(details.status, RequestRefused)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _table(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _page(url: str, path: object) -> str | None:
    """Return the full URL of a page; the server sends only its path."""
    if not isinstance(path, str):
        return None
    return url + path if path.startswith("/") else path


def _seconds(value: str | None) -> float | None:
    """Read Retry-After in seconds; a date, which Windlass servers never send, is ignored."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
