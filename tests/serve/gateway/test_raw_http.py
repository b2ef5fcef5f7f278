"""Malformed HTTP: every connection gets a 4xx or is closed, and other connections are not affected."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

BODY = json.dumps({"model": "tiny", "prompt": "dog", "max_tokens": 2}).encode()
GOOD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
)
PATIENCE_S = 60.0
GLANCE_S = 0.1
"""A request without its end gets no answer; so long one is looked out for before it is left."""
PIECES = st.sampled_from(
    [
        r"\x00",
        r"\r",
        r"\n",
        r"\r\n\r\n",
        r"\xff\xfe",
        r"%00",
        r"../",
        r"//",
        r"\t",
        r":",
        r"-1",
        r"9999999999999999999999999999999999",
        r"\\ud800",
        r"\\udc00\\ud800",
        r"\\u0000",
        r"\xed\xa0\x80",
        r"\xe2\x80\xae",
        r"\xef\xbb\xbf",
        r"NaN",
        r"1e999",
        r"Transfer-Encoding:chunked\r\n",
        r"Content-Length:5\r\n",
        r"Expect:100-continue\r\n",
    ]
).map(lambda written: written.encode().decode("unicode_escape").encode("latin-1"))


def answer(gateway: Any, data: bytes, patience_s: float = GLANCE_S) -> bytes:
    """Send bytes, and return the reply until the connection is closed or silent."""
    port = int(gateway.url.rpartition(":")[2])
    reply = b""
    connection = socket.create_connection(("127.0.0.1", port), timeout=patience_s)
    with connection, suppress(ConnectionError, TimeoutError):  # refused before it was read, or left waiting
        connection.sendall(data)
        while more := connection.recv(65536):
            reply += more
    return reply


def check(reply: bytes) -> None:
    """Check that a reply is a success or a client error."""
    assert re.match(rb"(?:HTTP/1\.1 100 Continue\r\n\r\n)?HTTP/1\.1 (?:200|4\d\d) |$", reply), reply[:200]


def test_the_unchanged_request_is_answered(gateway: Any) -> None:
    assert answer(gateway, GOOD, PATIENCE_S).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
def test_an_offer_of_another_protocol_is_ignored_and_the_body_read(gateway: Any, name: bytes) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings, close\r\nHTTP2-Settings: AAEA\r\n" + name + b": h2c\r\n"
    assert answer(gateway, GOOD.replace(b"Connection: close\r\n", offer), PATIENCE_S).startswith(
        b"HTTP/1.1 200"
    )


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_request_with_bytes_put_in_anywhere_harms_nothing(gateway: Any, data: st.DataObject) -> None:
    changed = GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(changed)))
        cut = data.draw(st.sampled_from([0, 0, 1, 7]))
        changed = changed[:place] + data.draw(PIECES) + changed[place + cut :]
    check(answer(gateway, changed))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(noise=st.binary(min_size=1, max_size=300))
def test_noise_harms_nothing(gateway: Any, noise: bytes) -> None:
    check(answer(gateway, noise))


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/tokenize", "/v1/dry-run"]
)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(), min_size=1, max_size=12))
def test_any_characters_are_answered_or_refused(http: httpx.Client, path: str, text: str) -> None:
    """Surrogates, NUL and unassigned characters, as JSON escapes, in every text of a body."""
    talk = [{"role": "user", "content": text}]
    bodies = {
        "/v1/completions": {"prompt": text, "max_tokens": 2, "stop": text},
        "/v1/chat/completions": {"messages": talk, "max_tokens": 2, "user": text},
        "/v1/embeddings": {"input": [text]},
        "/v1/tokenize": {"text": text},
        "/v1/dry-run": {"route": "/v1/chat/completions", "body": {"model": text, "messages": talk}},
    }
    body = bodies[path] if path == "/v1/dry-run" else bodies[path] | {"model": "tiny"}
    sent = json.dumps(body).encode()
    response = http.post(path, content=sent, headers={"content-type": "application/json"})
    lone = any(0xD800 <= ord(char) < 0xE000 for char in text)
    assert response.status_code == 400 if lone else response.status_code in (200, 400)


def test_after_all_that_the_gateway_answers(gateway: Any) -> None:
    assert answer(gateway, GOOD, PATIENCE_S).startswith(b"HTTP/1.1 200")
