"""The headers of a request, read once for all who look; those that mean something may come only once."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import Scope

from windlass.serve.gateway.errors import ApiError

Raw = Sequence[tuple[bytes, bytes]]
SENT = "windlass.sent"


class Sent:
    """What was sent under which name. Names are in lower case, as ASGI has them."""

    __slots__ = ("_last", "_raw")

    def __init__(self, raw: Raw) -> None:
        self._raw, self._last = raw, dict(raw)

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a name."""
        last = self._last.get(name)
        if last is None:
            return []
        if len(self._last) == len(self._raw):
            return [last]  # no name came twice
        return [value for each, value in self._raw if each == name]

    def first(self, name: bytes) -> bytes:
        """Return the first value of a name, or nothing."""
        values = self.all(name)
        return values[0] if values else b""


def sent_with(scope: Scope) -> Sent:
    """Return the headers of a request."""
    sent: Sent | None = scope.get(SENT)
    if sent is None:
        sent = scope[SENT] = Sent(scope["headers"])
    return sent


def only(request: Request, name: str) -> str | None:
    """Return the value of a header that may come at most once."""
    given = sent_with(request.scope).all(name.encode())
    if len(given) > 1:
        raise ApiError("invalid_header", f"there are {len(given)} headers {name}; send one")
    return given[0].decode("latin-1") if given else None
