"""A connection to one Windlass server, over HTTP: what all clients have in common.

What the server refuses is raised as the error a local call would raise: AskedWrongly for what the caller can
put right, NotFound, InUse, ServiceFailed for the rest. Message and hint are the server's own. A key goes into
a header, never into a URL or a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from windlass.spec.errors import AskedWrongly, InUse, NotFound, WindlassError

CONNECT_S = 10.0


class ServiceFailed(WindlassError):
    """The server is not there, is too busy, or could not finish."""


class Connection:
    """Asks one server; `absent` says what to look at when it is not there."""

    absent = "is the server running?"
    unknown = "give key=..., or set WINDLASS_KEY; `windlass keys make` makes one"

    def __init__(self, url: str, *, timeout_s: float, key: str | None = None) -> None:
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            headers={"authorization": f"Bearer {key}"} if key is not None else {},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if response.is_error:
            raise _refusal(response, self.unknown)
        answer: dict[str, Any] = response.json()
        return answer

    def _lines(self, method: str, path: str, **request: Any) -> Iterator[str]:
        """Yield the lines of an answer as they come."""
        try:
            with self._http.stream(method, path, **request) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response, self.unknown)
                yield from response.iter_lines()
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.TransportError) -> ServiceFailed:
        late = isinstance(error, httpx.TimeoutException)
        reason = "did not answer in time" if late else "cannot be reached"
        return ServiceFailed(f"{self._http.base_url}: {reason}", hint=self.absent)


def _refusal(response: httpx.Response, unknown: str) -> WindlassError:
    """Turn an error envelope into the error of our tree that means the same."""
    try:
        told = response.json()["error"]
        message, hint = str(told["message"]), told.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceFailed(f"{response.url}: answered {response.status_code}, and not as Windlass does")
    if response.status_code == 429 or response.status_code >= 500:
        return ServiceFailed(message, hint=hint or "try again shortly")
    if response.status_code == 401:
        return AskedWrongly(message, hint=hint or unknown)
    kinds: dict[int, type[WindlassError]] = {404: NotFound, 409: InUse}
    return kinds.get(response.status_code, AskedWrongly)(message, hint=hint)
