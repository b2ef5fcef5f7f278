"""Every way a request can fail, and the one envelope in which it is told.

Clients branch on `code`; people read `message`; `doc_url` leads to the sentence of the table below, which
the gateway itself serves. A message never carries a stack, an address or the repr of an object.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from windlass.spec.errors import WindlassError

ERRORS_PATH = "/errors"
MOST_MESSAGE_CHARS = 600

REQUEST = "invalid_request_error"
PERMISSION = "permission_error"
RATE = "rate_limit_error"
SERVER = "server_error"


@dataclass(frozen=True)
class Code:
    """The HTTP status of a code, the family OpenAI's clients know, and what to do about it."""

    status: int
    type: str
    meaning: str


CODES = {
    "invalid_json": Code(400, REQUEST, "The body is not JSON (RFC 8259, UTF-8); the message names the byte."),
    "invalid_value": Code(400, REQUEST, "A parameter has the wrong type or lies outside its range."),
    "missing_parameter": Code(400, REQUEST, "A parameter that the route needs is absent."),
    "unknown_parameter": Code(400, REQUEST, "A parameter that no route here knows; often a typing slip."),
    "unsupported_parameter": Code(
        400, REQUEST, "A parameter of OpenAI's API or a relative's that this server does not honour."
    ),
    "context_length_exceeded": Code(
        400, REQUEST, "Prompt and max_tokens together exceed the model's context; shorten one of them."
    ),
    "invalid_messages": Code(400, REQUEST, "The model's chat template refuses this order of messages."),
    "invalid_grammar": Code(
        400, REQUEST, "The schema, expression or choice for the answer is wrong, too large or not supported."
    ),
    "no_tokenizer": Code(400, REQUEST, "The model has no tokenizer; send token ids instead of text."),
    "wrong_model_kind": Code(400, REQUEST, "An encoder cannot write text; it only makes embeddings."),
    "foreign_origin": Code(403, PERMISSION, "A page from elsewhere asked; only the page served here may."),
    "foreign_host": Code(403, PERMISSION, "The Host header does not name this machine (DNS rebinding)."),
    "model_not_found": Code(404, REQUEST, "No such model is served here; GET /v1/models lists what is."),
    "not_found": Code(404, REQUEST, "No such path."),
    "method_not_allowed": Code(405, REQUEST, "The path exists, but not for this method."),
    "body_timeout": Code(408, REQUEST, "The body did not arrive in time."),
    "body_too_large": Code(413, REQUEST, "The body is larger than the server reads."),
    "url_too_long": Code(414, REQUEST, "The path and query are longer than the server reads."),
    "unsupported_media_type": Code(415, REQUEST, "Bodies are JSON: send Content-Type: application/json."),
    "queue_full": Code(429, RATE, "Too many requests wait already; try again after Retry-After seconds."),
    "internal": Code(500, SERVER, "A mistake of ours. The request_id finds it in the server's log."),
    "engine_failed": Code(500, SERVER, "The engine could not finish this request; others are not affected."),
    "engine_unavailable": Code(503, SERVER, "The engine is starting or has ended; try again shortly."),
    "shutting_down": Code(503, SERVER, "The server is stopping and could not finish this answer."),
}


class ApiError(WindlassError):
    """A request that cannot be answered; becomes an HTTP status, or the last event of a stream."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(plain(message))
        self.code = code
        self.param = None if param is None else plain(param, 100)
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return CODES[self.code].status

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


def envelope(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the one shape of every failure."""
    return {
        "error": {
            "code": error.code,
            "type": CODES[error.code].type,
            "message": error.message,
            "param": error.param,
            "doc_url": f"{ERRORS_PATH}#{error.code}",
            "request_id": request_id,
        }
    }


def plain(text: str, most_chars: int = MOST_MESSAGE_CHARS) -> str:
    """Return text that is safe to print: no control or direction-changing characters, bounded length."""
    cut = text if len(text) <= most_chars else text[: most_chars - 3] + "..."
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in cut)


def shown(value: object) -> str:
    """Return a short JSON-like form of a value that a client sent, to be quoted back to it."""
    if isinstance(value, str):
        return f"'{plain(value, 40)}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    if isinstance(value, int | float):
        return str(value)
    return "a list" if isinstance(value, list) else "an object"
