"""What synchronous and asynchronous clients share: how they are opened, and how a call becomes a method.

The calls (`answers`, `control`) are written once. A client's class names each of them in one line; a
descriptor there keeps the parameters and types, and runs the call with the client's driver.
"""

from __future__ import annotations

import inspect
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import httpx

from windlass.sdk.effects import Broken, Open, ReplyStarted
from windlass.sdk.exchange import RequestRunner
from windlass.sdk.retries import Retries
from windlass.sdk.sites import Circuit, ServerSite, as_sites
from windlass.spec.errors import AskedWrongly

KEY_VARIABLE = "WINDLASS_KEY"

C = TypeVar("C")
M = TypeVar("M", bound=Callable[..., Any])

Where = str | ServerSite | Sequence[str | ServerSite]
Clock = Callable[[], float]
Bits = Callable[[int], int]


class Face(Generic[C]):
    """The base of clients: holds the calls, which a driver runs."""

    calls: C


def exchange_of(
    where: Where,
    key: str | None,
    *,
    retries: Retries | None,
    circuit: Circuit | None,
    absent: str,
) -> RequestRunner:
    """Build the RequestRunner for one or several sites; the key goes into a header, never into a URL."""
    sites = as_sites(where)
    if not sites:
        raise AskedWrongly("no address was given", hint='Client("http://127.0.0.1:8000")')
    for site in sites:
        if not site.url.startswith(("http://", "https://")):
            raise AskedWrongly(f"'{site.url}' is not a URL", hint="begin it with http:// or https://")
    known = key or os.environ.get(KEY_VARIABLE) or None
    headers = {} if known is None else {"authorization": f"Bearer {known}"}
    return RequestRunner(
        sites, headers=headers, retries=retries or Retries(), circuit=circuit or Circuit(), absent=absent
    )


def bits(source: random.Random | None = None) -> Bits:
    """Return the source of random numbers: the system, unless a test passes a generator."""
    return (source or random.SystemRandom()).getrandbits


CLOCK: Clock = time.monotonic

UNHEARD_MS = 600
ALIVE_S = 1


def socket_options() -> list[tuple[int, int, int]]:
    """Set TCP keep-alive, so that a machine that vanishes, as when its network is cut, is noticed soon.

    A live machine acknowledges probes however long its answer takes, so a slow answer does not break the
    connection. For clients with several sites; Linux only.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return []
    tcp = socket.IPPROTO_TCP
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (tcp, socket.TCP_KEEPIDLE, ALIVE_S),
        (tcp, socket.TCP_KEEPINTVL, ALIVE_S),
        (tcp, socket.TCP_KEEPCNT, 3),
        (tcp, socket.TCP_USER_TIMEOUT, UNHEARD_MS),
    ]


def request_of(effect: Open) -> dict[str, Any]:
    """Convert a request for httpx."""
    said: dict[str, Any] = {"headers": dict(effect.headers)}
    if effect.request.body is not None:
        said["json"] = dict(effect.request.body)
    bound = effect.silence_s
    said["timeout"] = httpx.Timeout(bound, connect=effect.connect_s)
    return said


def head_of(response: httpx.Response) -> ReplyStarted:
    headers: Mapping[str, str] = response.headers
    return ReplyStarted(response.status_code, headers, str(response.url))


def broken_by(error: httpx.HTTPError | httpx.InvalidURL) -> Broken:
    """Describe how a connection failed, and whether the request may have arrived."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Broken("cannot be reached", sent=False, late=isinstance(error, httpx.TimeoutException))
    if isinstance(error, httpx.TimeoutException):
        return Broken("did not answer in time", sent=True, late=True)
    return Broken("the connection broke", sent=True)


def described(method: M, call: Callable[..., Any], returns: str) -> M:
    """Give a client's method the name, the docstring and the parameters of its call.

    `returns` is what the driver makes of Call[X] or Flow[X]: "X", "Awaitable[X]", "Stream[X]".
    """
    signature = inspect.signature(call)
    kind, _, inner = str(signature.return_annotation).rstrip("]").partition("[")
    made = returns.replace("X", inner) if kind in ("Call", "Flow") else str(signature.return_annotation)
    attributes = {"__signature__": signature.replace(return_annotation=made)}
    attributes |= {
        name: getattr(call, name) for name in ("__name__", "__qualname__", "__doc__", "__module__")
    }
    for name, value in attributes.items():
        setattr(method, name, value)
    return method
