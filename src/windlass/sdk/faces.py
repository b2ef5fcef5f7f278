"""What a blocking and an awaiting client share: how they are opened, and how a call becomes a method.

The calls (answers.py, control.py) are written once. A client's class names each of them in one line; a
descriptor there keeps its parameters and types, and says what a driver makes of it.
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
    """Holds the calls that a client offers; drivers give it a way to run them."""

    calls: C


def exchange_of(
    where: Where,
    key: str | None,
    *,
    retries: Retries | None,
    circuit: Circuit | None,
    absent: str,
) -> RequestRunner:
    """Open an exchange with one or several sites; the key goes into a header, never into a URL."""
    sites = as_sites(where)
    if not sites:
        raise AskedWrongly("no address was given", hint='Client("http://127.0.0.1:8000")')
    for site in sites:
        if not site.url.startswith(("http://", "https://")):
            raise AskedWrongly(f"'{site.url}' is no address", hint="begin it with http:// or https://")
    known = key or os.environ.get(KEY_VARIABLE) or None
    headers = {} if known is None else {"authorization": f"Bearer {known}"}
    return RequestRunner(
        sites, headers=headers, retries=retries or Retries(), circuit=circuit or Circuit(), absent=absent
    )


def bits(source: random.Random | None = None) -> Bits:
    """Return where random numbers come from: the system, unless a test gives a generator."""
    return (source or random.SystemRandom()).getrandbits


CLOCK: Clock = time.monotonic

UNHEARD_MS = 600
ALIVE_S = 1


def socket_options() -> list[tuple[int, int, int]]:
    """Let the system notice a machine that is gone without a word, as when its network is cut.

    One that is there acknowledges what it is sent, however long its answer takes: silence of the machine
    breaks a connection soon, silence of the program does not. For clients that can go elsewhere; Linux only.
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
    """Say a request as httpx wants it."""
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
    """Say how a connection failed, and whether the request may have arrived."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Broken("cannot be reached", sent=False, late=isinstance(error, httpx.TimeoutException))
    if isinstance(error, httpx.TimeoutException):
        return Broken("did not answer in time", sent=True, late=True)
    return Broken("the connection broke", sent=True)


def described(method: M, call: Callable[..., Any], returns: str) -> M:
    """Give a client's method the name, the text and the parameters of its call.

    `returns` is what the driver makes of Call[X] or Flow[X]: "X", "Awaitable[X]", "Stream[X]".
    """
    signature = inspect.signature(call)
    kind, _, inner = str(signature.return_annotation).rstrip("]").partition("[")
    made = returns.replace("X", inner) if kind in ("Call", "Flow") else str(signature.return_annotation)
    told = {"__signature__": signature.replace(return_annotation=made)}
    told |= {name: getattr(call, name) for name in ("__name__", "__qualname__", "__doc__", "__module__")}
    for name, value in told.items():
        setattr(method, name, value)
    return method
