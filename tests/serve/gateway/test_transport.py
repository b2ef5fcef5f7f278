"""HTTP on the socket: malformed, large or slow requests are refused or cut; others are answered."""

from __future__ import annotations

import itertools
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.http import listener, transport
from windlass.http.listener import bind
from windlass.http.transport import (
    PROGRESS_BYTES,
    group_of,
    max_connections,
    per_address,
    unsent_since,
    verdict,
)
from windlass.spec.errors import InUse
from windlass.spec.protocol.wire import Cancel, Generate
from windlass.spec.serve import Transport

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
KERNEL_BYTES = 16 << 20
"""More than the system keeps for both ends of a connection (usually up to 4 and 6 MiB)."""
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
times = st.none() | st.floats(0, 1000)

Connect = Callable[[], socket.socket]


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    """Check connections often, and use small kernel buffers so that unread bytes show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "LOOK_EVERY_S", 0.02)
        patch.setattr(listener, "SEND_BUFFER_BYTES", 4096)
        yield


@pytest.fixture(scope="module")
def limits() -> Transport:
    return Transport(head_s=0.3, idle_s=0.6, stalled_s=0.5, headers=20, head_bytes=4096)


@pytest.fixture(scope="module")
def bounded(start_shared: Any, limits: Transport) -> Any:
    return start_shared(transport=limits)


@pytest.fixture
def connect(bounded: Any) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(PATIENCE_S)
        line.connect(("127.0.0.1", int(bounded.url.rpartition(":")[2])))
        opened.append(line)
        return line

    yield connect
    for line in opened:
        line.close()


def read_all(line: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    reply = b""
    try:
        while part := line.recv(65536):
            reply += part
    except ConnectionResetError:
        pass
    return reply


def refusal_of(reply: bytes) -> tuple[int, str]:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(reply.split(b" ", 2)[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (HEAD + b"X-A: b\r\n" * 30 + b"\r\n", 431, "headers_too_large"),
        (HEAD + b"X-A: " + b"b" * 5000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "url_too_long"),
        (b"GET /?q=" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "url_too_long"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed_request"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, "malformed_request"),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400, "malformed_request"),
        (HEAD + b"Transfer-Encoding: gzip, identity\r\n\r\n", 400, "malformed_request"),
        (HEAD + b"X-A : b\r\n\r\n", 400, "malformed_request"),
        (HEAD + b"X-A: b\x00c\r\n\r\n", 400, "malformed_request"),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"),
        (b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 405, "method_not_allowed"),
        (b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
    ],
)
def test_what_is_no_proper_head_is_refused_in_the_envelope(
    connect: Connect, data: bytes, status: int, code: str
) -> None:
    line = connect()
    line.sendall(data)
    assert refusal_of(read_all(line)) == (status, code)


def test_a_header_without_an_end_is_refused_when_it_is_too_long(connect: Connect) -> None:
    line = connect()
    line.sendall(HEAD + b"X-A: ")
    for _ in range(20):
        try:
            line.sendall(b"a" * 1000)
        except OSError:
            break
    assert refusal_of(read_all(line)) == (431, "headers_too_large")


def test_a_head_that_comes_by_drops_is_not_waited_for(connect: Connect) -> None:
    line, stopped = connect(), threading.Event()

    def drip() -> None:
        for byte in itertools.chain(HEAD, itertools.cycle(b"X-A: b\r\n")):
            try:
                line.sendall(bytes([byte]))
            except OSError:
                return
            if stopped.wait(0.01):
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert refusal_of(read_all(line)) == (408, "head_timeout")
    stopped.set()
    dripping.join(PATIENCE_S)


@pytest.mark.parametrize("sent", [b"", b"\r\n", HEAD + b"\r\n"])
def test_a_connection_without_a_request_is_closed_in_silence(connect: Connect, sent: bytes) -> None:
    line = connect()
    line.sendall(sent)
    reply = read_all(line)
    assert reply.count(b"HTTP/1.1") == (1 if b"GET" in sent else 0)
    assert b" 408 " not in reply


def test_a_connection_that_is_used_stays(connect: Connect) -> None:
    line, paused = connect(), threading.Event()
    for _ in range(8):
        line.sendall(HEAD + b"\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
        paused.wait(0.2)


def test_requests_in_one_piece_are_answered_in_order(connect: Connect) -> None:
    line = connect()
    line.sendall((HEAD + b"\r\n") * 5 + HEAD + b"Connection: close\r\n\r\n")
    assert read_all(line).count(b"HTTP/1.1 200") == 6


@pytest.mark.parametrize("reads", [0, 1])
def test_a_stream_that_is_not_read_is_cut_and_its_work_given_up(
    bounded: Any, engine: Any, connect: Connect, reads: int
) -> None:
    bounded.wait_until("/readyz", 200)
    ask = {"model": "tiny", "prompt": "dog", "max_tokens": 120, "n": 4, "logprobs": 5, "stream": True}
    body = json.dumps(ask)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    line, stopped = connect(), threading.Event()
    engine.pause_s = 0.03
    line.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())

    def nibble() -> None:
        while reads and not stopped.wait(0.05):
            try:
                line.recv(reads)
            except OSError:
                return

    nibbling = threading.Thread(target=nibble)
    nibbling.start()
    engine.wait_for(lambda received: sum(isinstance(one, Cancel) for one in received) > 0)
    stopped.set()
    nibbling.join(PATIENCE_S)
    assert len(engine.of(Generate)) == 4
    assert len(read_all(line)) < 200_000


def test_unread_answers_fill_no_memory(bounded: Any, connect: Connect) -> None:
    line = connect()
    line.setblocking(False)
    requests = b"GET /errors HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
    sent = 0
    try:
        while sent < 10_000_000:
            sent += line.send(requests)
    except OSError:
        pass  # the server stopped reading, as it should
    assert sent < 10_000_000
    line.settimeout(PATIENCE_S)
    assert len(read_all(line)) < KERNEL_BYTES


def test_an_address_gets_so_many_connections_and_no_more(start_shared: Any) -> None:
    gateway = start_shared(transport=Transport(connections_per_address=3))
    address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    held = [socket.create_connection(address, PATIENCE_S) for _ in range(3)]
    for line in held:
        line.sendall(HEAD + b"\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
    with socket.create_connection(address, PATIENCE_S) as refused:
        reply = read_all(refused)
    assert refusal_of(reply) == (429, "too_many_connections")
    assert b"retry-after: 1\r\n" in reply
    for line in held:
        line.close()
    gateway.wait_until("/healthz", 200)


def test_the_gateway_holds_so_many_connections_and_no_more(start_shared: Any) -> None:
    gateway = start_shared(transport=Transport(connections=2))
    address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    with socket.create_connection(address, PATIENCE_S) as one, socket.create_connection(address) as two:
        for line in (one, two):
            line.settimeout(PATIENCE_S)
            line.sendall(HEAD + b"\r\n")
            assert line.recv(4096).startswith(b"HTTP/1.1 200")
        with socket.create_connection(address, PATIENCE_S) as refused:
            assert refusal_of(read_all(refused)) == (429, "too_many_connections")


def test_floods_of_head_and_options_are_answered_and_leave_nothing_behind(bounded: Any) -> None:
    with httpx.Client(base_url=bounded.url, timeout=PATIENCE_S) as client:
        for _ in range(50):
            assert client.head("/healthz").status_code == 200
            assert client.options("/v1/completions").status_code == 405
    assert len(bounded.connections) <= 2


def test_gateways_share_a_port_only_if_all_say_so() -> None:
    with bind("127.0.0.1", 0, shared=True) as first:
        port = first.getsockname()[1]
        first.listen()
        with bind("127.0.0.1", port, shared=True) as second:
            second.listen()
        with pytest.raises(InUse, match=str(port)):
            bind("127.0.0.1", port)


@given(now=st.floats(0, 1000), head=times, idle=times, unsent=times, refused=times)
def test_only_who_overstays_is_cut(
    now: float, head: float | None, idle: float | None, unsent: float | None, refused: float | None
) -> None:
    limits = Transport()
    given = {"head_since": head, "idle_since": idle, "unsent_since": unsent, "refused_at": refused}
    found = verdict(limits, now, **given)
    longest = max((now - since for since in given.values() if since is not None), default=0.0)
    if found is None:
        assert refused is not None or longest <= max(limits.idle_s, limits.stalled_s) or head is not None
    else:
        assert longest > min(limits.head_s, transport.LINGER_S)
    if found == "late":
        assert head is not None
        assert now - head > limits.head_s


@given(steps=st.lists(st.integers(0, 300_000), min_size=1))
def test_a_client_that_takes_its_share_is_never_stalled(steps: list[int]) -> None:
    """Whatever is owed, the watch starts anew when it shrinks by a share, and ends when nothing is owed."""
    before: tuple[int, float] | None = None
    for now, owed in enumerate(steps):
        after = unsent_since(before, owed, float(now))
        if not owed:
            assert after is None
        elif before is None or before[0] - owed >= PROGRESS_BYTES:
            assert after == (owed, now)
        else:
            assert after == before
        before = after


def test_one_client_of_ipv6_is_its_network() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff") != group_of("2001:db8:0:1::1")
    assert group_of("fe80::1%eth0") == "fe80::/64"
    assert per_address(Transport(), "127.0.0.1") == per_address(Transport(), group_of("::1")) == 16384
    assert per_address(Transport(), "10.0.0.1") == 512
    assert per_address(Transport(connections_per_address=7), "127.0.0.1") == 7


def test_connections_leave_some_files_for_all_else() -> None:
    assert max_connections(16384, 1_048_576) == max_connections(16384, resource.RLIM_INFINITY) == 16384
    assert max_connections(16384, 1024) == 768
    assert max_connections(16384, 100) == 1
