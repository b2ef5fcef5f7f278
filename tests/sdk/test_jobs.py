"""The client of the control API where nobody answers as it should; the rest is in test_control_api.py."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from windlass.sdk import Jobs, ServiceFailed


class Stranger(BaseHTTPRequestHandler):
    """A server that is not ours: it breaks streams off and answers with pages."""

    def do_GET(self) -> None:
        stream = "event-stream" in self.headers.get("accept", "")
        body = b'id: 1\ndata: {"event": "step"}\n\n' if stream else b"<html>no</html>"
        self.send_response(200 if stream else 502)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with Jobs("http://127.0.0.1:9", "key") as jobs, pytest.raises(ServiceFailed, match="cannot be reached"):
        jobs.list()


def test_a_server_that_is_not_ours_is_a_sentence(url: str) -> None:
    with Jobs(url, "key") as jobs, pytest.raises(ServiceFailed, match="not as Windlass does"):
        jobs.show("poems/1")


def test_a_stream_that_breaks_off_is_not_an_end(url: str) -> None:
    with Jobs(url, "key") as jobs:
        watched = jobs.watch("poems/1")
        assert next(watched) == {"event": "step"}
        with pytest.raises(ServiceFailed, match="broke before the run ended"):
            next(watched)
