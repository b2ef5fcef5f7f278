"""The server as people meet it: by `dig`, by commands, and by sites that answer wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from windlass.cli.main import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("dig") is None, reason="dig is not installed (bind9-dnsutils)"),
]


class Gateway:
    """What a site's gateway says to a known question; a test changes it."""

    def __init__(self) -> None:
        self.text, self.status = " jumps over", 200
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                body = json.dumps({"model": "base@3", "choices": [{"text": gateway.text}]}).encode()
                self.send_response(gateway.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def gateways() -> Iterator[list[Gateway]]:
    made = [Gateway(), Gateway()]
    yield made
    for gateway in made:
        gateway.server.shutdown()


@pytest.fixture
def file(tmp_path: Path, gateways: list[Gateway]) -> Path:
    path = tmp_path / "sites.toml"
    path.write_text(
        f"""
zone = "llm.example.org"
ttl = 1
drain = "1s"
[watch]
every = "100ms"
model = "base"
rise = 3
[[site]]
name = "east"
addresses = ["192.0.2.1"]
url = "{gateways[0].url}"
distance = 1
[[site]]
name = "west"
addresses = ["192.0.2.2"]
url = "{gateways[1].url}"
[[clients]]
networks = ["10.2.0.0/16"]
distances = {{ west = 0 }}
"""
    )
    return path


@contextlib.contextmanager
def serving(file: Path, home: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "windlass.cli", "sites", "serve", str(file), "--port", "0", "--json"]
    process = subprocess.Popen([*command, "--home", str(home)], stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        assert process.stdout is not None
        port = next(event["port"] for line in process.stdout if "port" in (event := json.loads(line)))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def dig(port: int, *words: str) -> str:
    command = ["dig", "@127.0.0.1", "-p", str(port), "+time=2", "+tries=2", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def until(port: int, expected: str) -> None:
    deadline = time.monotonic() + 60
    while (found := dig(port, "+short", "llm.example.org").strip()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_dig_gets_the_nearest_site_and_another_when_that_answers_wrongly(
    file: Path, tmp_path: Path, gateways: list[Gateway]
) -> None:
    with serving(file, tmp_path) as port:
        until(port, "192.0.2.1")
        assert dig(port, "+short", "llm.example.org", "+subnet=10.2.3.0/24").strip() == "192.0.2.2"
        assert dig(port, "+short", "+tcp", "llm.example.org").strip() == "192.0.2.1"
        assert "status: REFUSED" in dig(port, "example.com")
        assert "recursion requested but not available" in dig(port, "llm.example.org")
        assert "Transfer failed" in dig(port, "llm.example.org", "AXFR")
        gateways[0].text = " something else"
        until(port, "192.0.2.2")
        gateways[0].text = gateways[1].text
        until(port, "192.0.2.1")
        gateways[0].status = 503
        until(port, "192.0.2.2")


def test_a_site_is_drained_and_restored_by_commands(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(file), "--home", str(tmp_path), "--json"]
    assert main(["sites", "show", *words]) == 2
    assert "no DNS server for llm.example.org" in capsys.readouterr().err
    with serving(file, tmp_path) as port:
        until(port, "192.0.2.1")
        assert main(["sites", "drain", *words, "east", "--wait"]) == 0
        assert json.loads(capsys.readouterr().out) == {"site": "east", "state": "withdrawn"}
        assert dig(port, "+short", "llm.example.org").strip() == "192.0.2.2"
        assert main(["sites", "show", *words]) == 0
        assert [s["state"] for s in json.loads(capsys.readouterr().out)["sites"]] == ["withdrawn", "well"]
        assert main(["sites", "restore", *words, "east"]) == 0
        until(port, "192.0.2.1")
        assert main(["sites", "drain", *words, "estt"]) == 2
        assert "did you mean" in capsys.readouterr().err
