"""HTTP/1.1 on the socket, with bounds: who sends too slowly, too much, or takes nothing, is cut.

uvicorn's protocol reads requests; this one bounds their heads while they arrive. Connections counts all of a
gateway and looks at each once a second, so that a request which comes in one piece pays for no timer.
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
"""How long a refused client may take to hang up; a connection that is closed at once may lose its answer."""
PROGRESS_BYTES = 16384
"""A client that takes so much within `stalled_s` is slow; one that takes less is stalled."""
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
        self._most = max_connections(limits.connections, raise_files())
        self._open: set[BoundedProtocol] = set()
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, protocol: BoundedProtocol, address: str) -> ApiError | None:
        """Count a connection; return why it may not stay, if so."""
        self._open.add(protocol)
        self._from[address] += 1
        allowed = per_address(self.limits, address)
        if self._from[address] > allowed:
            told = f"{allowed} connections from this address are open already"
        elif len(self._open) > self._most:
            told = f"{self._most} connections are open already"
        else:
            return None
        return ApiError("too_many_connections", told, retry_after_s=1.0)

    def leave(self, protocol: BoundedProtocol, address: str) -> None:
        self._open.discard(protocol)
        self._from[address] -= 1
        if not self._from[address]:
            del self._from[address]

    async def watch(self) -> None:
        """Cut, for ever, whoever overstays."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = loop.time()
            for protocol in list(self._open):
                protocol.look(now)


class BoundedProtocol(HttpToolsProtocol):
    """One connection: since when it has been in which state, and how much of a head it has sent."""

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
        """The request whose head ended in what was just received; nobody has read of its body yet."""

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
            pass  # no other protocol is spoken here; the request is answered as it stands
        except httptools.HttpParserInvalidMethodError:
            self._refuse(ApiError("method_not_allowed", "this method is not known here"))
        except httptools.HttpParserError:
            self._refuse(self._refusal or ApiError("malformed_request", "this is not an HTTP/1.1 request"))
        self._begun = None
        if in_head and self._head_since is not None and self.cycle is before:
            self._unparsed_bytes += len(data)  # of a header that does not end, nobody else would know
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
            self._stop(ApiError("malformed_request", "a body may be chunked, and coded in no other way"))
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
        """Cut the connection if it has been waited for too long."""
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
            self._refuse(ApiError("head_timeout", f"no whole head within {self._limits.head_s:g} s"))
        elif found == "idle":
            self.transport.close()
        elif found is not None:
            self.transport.abort()

    def _owed(self) -> int:
        """Return how many bytes wait for the client, while nobody adds to them."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.flow.write_paused:
            return 0
        return self.transport.get_write_buffer_size()

    def _too_large(self) -> ApiError:
        most = f"{self._limits.headers} headers and {self._limits.head_bytes} bytes"
        return ApiError("headers_too_large", f"the head of a request may have {most}")

    def _stop(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise RequestAborted

    def _refuse(self, error: ApiError) -> None:
        """Answer and hang up; in the middle of another answer there is nothing to say."""
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
    """Rename the header in which a client offers to speak another protocol.

    None is spoken here, and a server may ignore the offer (RFC 9110, 7.8); the parser would take the body for
    that protocol's first bytes, and not read it. Java's HTTP client offers HTTP/2 unless it is told not to.
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
    """Return why a connection is to be cut, if it is."""
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
    """Return how many bytes waited for the client when it last took a fair share of them, and when."""
    if not owed:
        return None
    if before is None or owed <= before[0] - PROGRESS_BYTES:
        return owed, now
    return before


def per_address(limits: Transport, address: str) -> int:
    """Return how many connections one address may have; this machine's programs are trusted with all."""
    if limits.connections_per_address is not None:
        return limits.connections_per_address
    local = address.startswith("127.") or address in ("::/64", "")
    return limits.connections if local else PER_ADDRESS


def group_of(address: str) -> str:
    """Return what counts as one address: of IPv6 the network, which one client has whole."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))


def refusal_bytes(error: ApiError, request_id: str) -> bytes:
    """Return a whole HTTP response for a request that no route has seen."""
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
    """Return how many connections there may be, so that some files are left for all else."""
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files - SPARE_FILES))


def raise_files() -> int:
    """Let this process open as many files as the system allows; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
