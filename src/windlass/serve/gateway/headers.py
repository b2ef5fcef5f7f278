"""Headers that mean something here are sent once, or not at all."""

from __future__ import annotations

from starlette.requests import Request

from windlass.serve.gateway.errors import ApiError


def only(request: Request, name: str) -> str | None:
    """Return the value of a header that may come at most once."""
    given = request.headers.getlist(name)
    if len(given) > 1:
        raise ApiError("invalid_header", f"there are {len(given)} headers {name}; send one")
    return given[0] if given else None
