"""All error codes of the HTTP APIs, and the body of every error reply.

Clients branch on `code`; people read `message`; programs that repair requests read `path`, `allowed` and
`corrected`; `doc_url` is the page of the code, which the gateway itself serves from the same table
(codes.toml). A message never carries a stack, an address or the repr of an object.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import traceback
import unicodedata
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from windlass.spec.errors import WindlassError

ERRORS_PATH = "/errors"
MAX_MESSAGE_CHARS = 600

REQUEST = "invalid_request_error"
PERMISSION = "permission_error"
SERVER = "server_error"

_WORDS = re.compile(r"[A-Za-z_]\w*(?:\[\d+\]|\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Code:
    """The HTTP status of a code, its type in OpenAI's API, its meaning and a remedy."""

    status: int
    type: str
    meaning: str
    remedy: str = ""
    route: str = ""
    wrong: str = ""
    right: str = ""


def _read_codes() -> dict[str, Code]:
    table = tomllib.loads((files("windlass.http") / "codes.toml").read_text("utf-8"))
    return {code: Code(**entry) for code, entry in table.items()}


CODES = _read_codes()


class ApiError(WindlassError):
    """A request that cannot be answered; becomes an HTTP status, or the last event of a stream.

    `param` is a place in the body such as messages[0].content; `allowed` what is valid there, in keywords of
    JSON Schema ({"minimum": 0, "maximum": 2}); `corrected` a whole body that would be accepted, set only
    when that is certain.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        allowed: dict[str, Any] | None = None,
        corrected: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(plain(message))
        self.code = code
        self.param = None if param is None else plain(param, 100)
        self.retry_after_s = retry_after_s
        self.allowed = allowed
        self.corrected = corrected

    @property
    def status(self) -> int:
        return CODES[self.code].status

    @property
    def headers(self) -> dict[str, str]:
        if self.code == "unauthorized":
            return {"www-authenticate": "Bearer"}
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the error in a reply; another API may reply with other fields."""
        return {
            "code": self.code,
            "type": CODES[self.code].type,
            "message": self.message,
            "param": self.param,
            "path": None if self.param is None else _path(self.param),
            "allowed": self.allowed,
            "corrected": self.corrected,
            "doc_url": f"{ERRORS_PATH}/{self.code}",
        }


def envelope(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the body of an error reply."""
    return {"error": error.fields | {"request_id": request_id}}


def raised_at(error: BaseException) -> str:
    """Return where in the code an unexpected error arose, for the log; never what was in the request."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))


def _path(param: str) -> str:
    """Return a place as a JSON path; names that are not identifiers are quoted."""
    if _WORDS.fullmatch(param):
        return f"$.{param}"
    return f"$[{json.dumps(param, ensure_ascii=False)}]"


def plain(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """Return text that is safe to print: no control or direction-changing characters, bounded length."""
    cut = text if len(text) <= max_chars else text[: max_chars - 3] + "..."
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in cut)


def shown(value: object) -> str:
    """Return a short JSON-like form of a client's value, to quote in an error message."""
    if isinstance(value, str):
        return f"'{plain(value, 40)}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    if isinstance(value, int | float):
        return str(value)
    return "a list" if isinstance(value, list) else "an object"
