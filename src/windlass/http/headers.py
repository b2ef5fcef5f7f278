"""The headers of a request, parsed once; headers that the server interprets may occur only once."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import Scope

from windlass.http.errors import ApiError

Raw = Sequence[tuple[bytes, bytes]]
SENT = "windlass.sent"


class RequestHeaders(dict[bytes, bytes]):
    """The first value of every header; names are in lower case, as in ASGI."""

    def __init__(self, raw: Raw) -> None:
        super().__init__(reversed(raw))
        self._raw = raw

    def times(self, name: bytes) -> int:
        """Return how often a header occurs."""
        if len(self) == len(self._raw):
            return int(name in self)  # none came twice
        return sum(each == name for each, _ in self._raw)


def sent_with(scope: Scope) -> RequestHeaders:
    """Return the headers of a request."""
    sent: RequestHeaders | None = scope.get(SENT)
    if sent is None:
        sent = scope[SENT] = RequestHeaders(scope["headers"])
    return sent


def only(request: Request, name: str) -> str | None:
    """Return the value of a header; raise ApiError if it occurs more than once."""
    sent, key = sent_with(request.scope), name.encode()
    if key not in sent:
        return None
    times = sent.times(key)
    if times > 1:
        raise ApiError("invalid_header", f"there are {times} headers {name}; send one")
    return sent[key].decode("latin-1")
