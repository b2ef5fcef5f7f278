"""What only the blocking driver has to care for: a read that nothing would end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from windlass.sdk.blocking import BlockingReply
from windlass.sdk.effects import Broken, Open, ReplyStarted, Request


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that begins an answer and then says nothing, until its client has left."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun")
            client.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join()
    listener.close()


def test_a_read_ends_with_the_deadline_although_silence_may_last_longer(silent: str) -> None:
    with httpx.Client(timeout=60) as http:
        line = BlockingReply(http)
        assert isinstance(line.open(Open(silent, Request("GET", "/"), {}, 5.0, 600.0)), ReplyStarted)
        assert line.read(0.1) == b"begun"
        assert isinstance(line.read(0.1), Broken)
        line.close()
