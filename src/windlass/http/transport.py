"""HTTP/1.1 with limits: a client that sends too slowly, sends too much, or does not read is disconnected.

uvicorn's protocol reads requests; BoundedProtocol limits their heads while they arrive. HttpConnections
counts all connections of a gateway and checks each once a second, so that a request needs no timer of its
own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import resource
import secrets
from collections import Counter
from typing import Any, Literal, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from windlass.http.errors import ApiError, envelope
from windlass.http.json_body import WHOLE
from windlass.http.origins import MAX_URL_BYTES
from windlass.http.write_coalescing import Corked
from windlass.spec.serve import Transport

LOOK_EVERY_S = 1.0
LINGER_S = 2.0
"""How long a refused client may take to close; if the server closed at once, the reply might be lost."""
PROGRESS_BYTES = 16384
"""A client that reads less than this within `stalled_s` is stalled."""
SPARE_FILES = 256
PER_ADDRESS = 512
CODING, EXPECT = b"transfer-encoding", b"expect"
OFFER = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

Verdict = Literal["late", "idle", "stalled", "lingering"]


class RequestAborted(Exception):
    """Ends the parsing of a request that was refused while it arrived."""


class HttpConnections:
    """All connections of this gateway."""

    def __init__(self, limits: Transport) -> None:
        self.limits = limits
        self._max_open = max_connections(limits.connections, raise_files())
        self._open: set[BoundedProtocol] = set()
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, protocol: BoundedProtocol, address: str) -> ApiError | None:
        """Count a connection; return the error if it exceeds a limit."""
        self._open.add(protocol)
        self._from[address] += 1
        allowed = per_address(self.limits, address)
        if self._from[address] > allowed:
            reason = f"{allowed} connections from this address are open already"
        elif len(self._open) > self._max_open:
            reason = f"{self._max_open} connections are open already"
        else:
            return None
        return ApiError("too_many_connections", reason, retry_after_s=1.0)

    def leave(self, protocol: BoundedProtocol, address: str) -> None:
        self._open.discard(protocol)
        self._from[address] -= 1
        if not self._from[address]:
            del self._from[address]

    async def watch(self) -> None:
        """Close connections that exceed a time limit, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = loop.time()
            for protocol in list(self._open):
                protocol.look(now)


class BoundedProtocol(HttpToolsProtocol):
    """One connection: its state and since when, and how much of a head has arrived."""

    def __init__(self, connections: HttpConnections, **given: Any) -> None:
        super().__init__(**given)
        self._all = connections
        self._limits = connections.limits
        self._address = ""
        self._refusal: ApiError | None = None
        self._refused_at: float | None = None
        self._head_since: float | None = None
        self._idle_since: float | None = self.loop.time()
        self._unsent: tuple[int, float] | None = None
        self._head_bytes = self._unparsed_bytes = 0
        self._begun: Any = None
        """The request whose head ended in the data just received; its body has not been read yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Corked(transport, self.loop)))
        self._address = group_of(self.client[0] if self.client else "")
        refusal = self._all.enter(self, self._address)
        if refusal is not None:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused_at is not None:
            return
        self._unset_keepalive_if_required()
        in_head, before = self._head_since is not None or self._idle_since is not None, self.cycle
        if in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_offer(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the offer of another protocol is ignored
        except httptools.HttpParserInvalidMethodError:
            self._refuse(ApiError("method_not_allowed", "unknown HTTP method"))
        except httptools.HttpParserError:
            self._refuse(self._refusal or ApiError("malformed_request", "this is not an HTTP/1.1 request"))
        self._begun = None
        if in_head and self._head_since is not None and self.cycle is before:
            self._unparsed_bytes += len(data)  # nothing else notices a header that does not end
            if self._unparsed_bytes > self._limits.head_bytes:
                self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_since = self.loop.time()
        self._head_bytes = self._unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._stop(ApiError("url_too_long", f"the path and query have more than {MAX_URL_BYTES} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == EXPECT:
            super().on_header(name, value)
        else:
            self.headers.append((name, value))
        self._head_bytes += len(name) + len(value)
        if name == CODING and value.lower() != b"chunked":
            self._stop(ApiError("malformed_request", "a body may be chunked, but not encoded otherwise"))
        if len(self.headers) > self._limits.headers or self._head_bytes > self._limits.head_bytes:
            self._stop(self._too_large())

    def on_headers_complete(self) -> None:
        self._head_since = self._idle_since = None
        if not self.url.startswith(b"/"):
            self._stop(ApiError("malformed_request", "the request must name a path that begins with '/'"))
        super().on_headers_complete()
        self._begun = self.cycle

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._begun is not None and self._begun is self.cycle:
            self.cycle.scope[WHOLE] = bytes(self.cycle.body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = None if self.pipeline else self.loop.time()

    def look(self, now: float) -> None:
        """Close the connection if it exceeds a time limit."""
        self._unsent = unsent_since(self._unsent, self._owed(), now)
        found = verdict(
            self._limits,
            now,
            head_since=self._head_since,
            idle_since=self._idle_since,
            unsent_since=self._unsent[1] if self._unsent else None,
            refused_at=self._refused_at,
        )
        if found == "late":
            self._refuse(ApiError("head_timeout", f"no complete head within {self._limits.head_s:g} s"))
        elif found == "idle":
            self.transport.close()
        elif found is not None:
            self.transport.abort()

    def _owed(self) -> int:
        """Return how many bytes wait for the client, while none are added."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.flow.write_paused:
            return 0
        return self.transport.get_write_buffer_size()

    def _too_large(self) -> ApiError:
        limit = f"{self._limits.headers} headers and {self._limits.head_bytes} bytes"
        return ApiError("headers_too_large", f"the head of a request may have at most {limit}")

    def _stop(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise RequestAborted

    def _refuse(self, error: ApiError) -> None:
        """Send the error and close; in the middle of another answer, only close."""
        if self._refused_at is not None or self.transport.is_closing():
            return
        self._refused_at = self.loop.time()
        self._head_since = self._idle_since = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(refusal_bytes(error, secrets.token_hex(12)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


def without_offer(data: bytes) -> bytes:
    """Rename the Upgrade header, by which a client offers another protocol.

    A server may ignore the offer (RFC 9110, 7.8), but the parser would take the body for that protocol's
    first bytes, and not read it. Java's HTTP client offers HTTP/2 by default.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return OFFER.sub(b"\r\nx-upgrade:", head) + end + body


def verdict(
    limits: Transport,
    now: float,
    *,
    head_since: float | None,
    idle_since: float | None,
    unsent_since: float | None,
    refused_at: float | None,
) -> Verdict | None:
    """Return why a connection must be closed, if it must."""
    if refused_at is not None:
        return "lingering" if now - refused_at > LINGER_S else None
    if unsent_since is not None and now - unsent_since > limits.stalled_s:
        return "stalled"
    if head_since is not None and now - head_since > limits.head_s:
        return "late"
    if head_since is None and idle_since is not None and now - idle_since > limits.idle_s:
        return "idle"
    return None


def unsent_since(before: tuple[int, float] | None, owed: int, now: float) -> tuple[int, float] | None:
    """Return how many bytes waited for the client when it last read a fair share of them, and when."""
    if not owed:
        return None
    if before is None or owed <= before[0] - PROGRESS_BYTES:
        return owed, now
    return before


def per_address(limits: Transport, address: str) -> int:
    """Return how many connections one address may have; loopback has no limit of its own."""
    if limits.connections_per_address is not None:
        return limits.connections_per_address
    local = address.startswith("127.") or address in ("::/64", "")
    return limits.connections if local else PER_ADDRESS


def group_of(address: str) -> str:
    """Return what counts as one address: for IPv6 the network, because one client may own all of it."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))


def refusal_bytes(error: ApiError, request_id: str) -> bytes:
    """Return a complete HTTP error response for a request that reaches no route."""
    body = json.dumps(envelope(error, request_id)).encode()
    headers = error.headers | {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": request_id,
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body


def max_connections(wanted: int, files: int) -> int:
    """Return how many connections are possible, with some file descriptors left for everything else."""
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files - SPARE_FILES))


def raise_files() -> int:
    """Raise this process's limit of open files to the maximum; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
