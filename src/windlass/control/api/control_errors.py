"""The error codes of the control API; its errors have a hint, where those of the gateway name a place."""

from __future__ import annotations

from typing import Any

from windlass.control.plane.job_store import NameTaken
from windlass.http import errors as gateway
from windlass.http.errors import PERMISSION, REQUEST, SERVER, ApiError, Code, plain
from windlass.spec.errors import AskedWrongly, InUse, NotFound, WindlassError

SHARED = (
    "invalid_json",
    "foreign_origin",
    "foreign_host",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "body_too_large",
    "url_too_long",
    "internal",
)
CODES = {name: gateway.CODES[name] for name in SHARED} | {
    "unauthorized": Code(401, PERMISSION, "No key, or an unknown one: Authorization: Bearer KEY."),
    "forbidden": Code(403, PERMISSION, "The key may read, but this changes something."),
    "refused": Code(
        400, REQUEST, "The request is invalid; the message says why, the hint what would be right."
    ),
    "run_not_found": Code(404, REQUEST, "There is no such run; GET /v1/jobs lists the runs."),
    "model_not_found": Code(
        404, REQUEST, "No such model or version is registered; GET /v1/models lists them."
    ),
    "too_many_requests": Code(
        429, REQUEST, "A tenant sends too many requests, or has too many jobs waiting; try later."
    ),
    "in_use": Code(409, REQUEST, "Another process holds what this needs right now; try again."),
    "name_taken": Code(409, REQUEST, "An unfinished job has that name; stop it, or choose another name."),
    "failed": Code(500, SERVER, "The store or a process failed; the message says which."),
}
RETRY_S = 1.0


class ControlError(ApiError):
    """A request to the control API that is refused."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(code, message, retry_after_s=RETRY_S if code == "too_many_requests" else None)
        self.hint = None if hint is None else plain(hint)

    @property
    def status(self) -> int:
        return CODES[self.code].status

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "type": CODES[self.code].type,
            "message": self.message,
            "hint": self.hint,
        }


def refusal(error: WindlassError) -> ControlError:
    """Turn any Windlass error into one with a code, with the message that the command line prints."""
    if isinstance(error, ControlError):
        return error
    if isinstance(error, ApiError):
        return ControlError(error.code, error.message)
    if isinstance(error, NotFound):
        return ControlError("run_not_found", error.message, hint=error.hint)
    if isinstance(error, NameTaken):
        return ControlError("name_taken", error.message, hint=error.hint)
    if isinstance(error, InUse):
        return ControlError("in_use", error.message, hint=error.hint)
    if isinstance(error, AskedWrongly):
        return ControlError("refused", error.message, hint=error.hint)
    return ControlError("failed", error.message, hint=error.hint)
