"""The gateway as a process: its first line, its shutdown, and what triggers it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.serve.records.keys import ensure_first_key
from windlass.serve.records.state import open_state
from windlass.spec.protocol.wire import Generate
from windlass.spec.serve import Serve
from windlass.store.database import sqlite_url

PATIENCE_S = 60

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(model_dir: Path, socket_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(*flags: str, **options: Any) -> subprocess.Popen[str]:
        given = {"model": model_dir, "name": "tiny@3", "socket": socket_path, "port": 0} | options
        command = [sys.executable, "-m", "windlass.serve.gateway", *(flags or ["--open"])]
        for key, value in given.items():
            command += [f"--{key}", str(value)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(PATIENCE_S)
        for end in (process.stdin, process.stdout, process.stderr):
            assert end is not None
            end.close()


def first_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def wait_ready(url: str) -> None:
    for _ in range(2000):
        if httpx.get(f"{url}/readyz", timeout=PATIENCE_S).status_code == 200:
            return
    raise AssertionError("never ready")


def test_it_says_where_it_listens_and_ends_in_order(start: Start, engine: Any) -> None:
    process = start()
    listening = first_line(process)["listening"]
    assert listening["url"] == f"http://127.0.0.1:{listening['port']}"
    wait_ready(listening["url"])
    engine.pause_s = 0.05
    ask = {"model": "tiny", "prompt": "dog", "max_tokens": 10, "stream": True}
    with httpx.stream("POST", f"{listening['url']}/v1/completions", json=ask, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert process.wait(PATIENCE_S) == 0


def test_a_stream_that_outlasts_the_drain_is_reported_and_cancelled(start: Start, engine: Any) -> None:
    process = start()
    url = first_line(process)["listening"]["url"]
    wait_ready(url)
    engine.held = {1}
    ask = {"model": "tiny", "prompt": "dog", "max_tokens": 10, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=ask, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        last = [line for line in lines if line][-1]
    assert json.loads(last[6:])["error"]["code"] == "shutting_down"
    assert process.wait(PATIENCE_S) == 0


def test_it_ends_when_its_parent_is_gone(start: Start) -> None:
    process = start()
    first_line(process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0


def test_a_port_in_use_is_reported_and_exits_2(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(port=port)
        error = first_line(process)["error"]
        assert error["kind"] == "InUse"
        assert str(port) in error["message"]
        assert process.wait(PATIENCE_S) == 2


def test_a_model_that_is_not_there_is_reported_and_exits_2(start: Start, tmp_path: Path) -> None:
    process = start(model=tmp_path / "none")
    assert first_line(process)["error"]["kind"] == "NotFound"
    assert process.wait(PATIENCE_S) == 2


def test_prompts_appear_in_no_log(start: Start, engine: Any) -> None:
    process = start()
    url = first_line(process)["listening"]["url"]
    wait_ready(url)
    for body in ({"prompt": "XYZZY"}, {"prompt": "XYZZY", "n": "XYZZY"}, {"XYZZY": 1}):
        httpx.post(f"{url}/v1/completions", json={"model": "tiny"} | body, timeout=PATIENCE_S)
    assert engine.of(Generate)
    engine.dies_after = 0
    httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "XYZZY"}, timeout=PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "XYZZY" not in out + err


def test_it_never_loads_torch(start: Start) -> None:
    command = "import sys, windlass.serve.gateway.__main__; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", command], env=environment, timeout=PATIENCE_S).returncode == 0
    )


def test_a_request_during_shutdown_learns_when_to_retry(start: Start, engine: Any) -> None:
    process = start()
    url = first_line(process)["listening"]["url"]
    wait_ready(url)
    engine.pause_s = 0.1
    ask = {"model": "tiny", "prompt": "dog", "max_tokens": 20, "stream": True}
    with (
        httpx.Client(base_url=url, timeout=PATIENCE_S) as kept,
        httpx.stream("POST", f"{url}/v1/completions", json=ask, timeout=PATIENCE_S) as response,
    ):
        assert kept.get("/healthz").status_code == 200
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        while kept.get("/readyz").status_code == 200:
            pass
        for refused in (kept.post("/v1/completions", json=ask), httpx.get(f"{url}/v1/models", timeout=60)):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "2")
        assert kept.get("/healthz").status_code == 200
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert process.wait(PATIENCE_S) == 0


def test_without_keys_it_listens_on_loopback_only(start: Start) -> None:
    process = start("--open", host="0.0.0.0")
    assert "without keys" in first_line(process)["error"]["message"]
    assert process.wait(PATIENCE_S) == 2


def test_without_keys_and_without_a_word_about_it_nothing_is_served(start: Start) -> None:
    process = start("--queue=4")
    assert "no database of keys" in first_line(process)["error"]["message"]
    assert process.wait(PATIENCE_S) == 2


def test_a_key_of_the_state_opens_it_and_reaches_neither_command_line_nor_log(
    start: Start, engine: Any, tmp_path: Path
) -> None:
    state = sqlite_url(tmp_path / "service.db")
    token = ensure_first_key(open_state(state))
    assert token is not None
    settings = tmp_path / "serve.json"
    settings.write_text(Serve(state=state, port=0).model_dump_json())
    process = start(f"--settings={settings}")
    url = first_line(process)["listening"]["url"]
    wait_ready(url)
    assert httpx.get(f"{url}/v1/models", timeout=60).status_code == 401
    bearer = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{url}/v1/models", headers=bearer, timeout=60).status_code == 200
    wrong = {"authorization": "Bearer wlk_nobodys"}
    assert httpx.get(f"{url}/v1/models", headers=wrong, timeout=60).status_code == 401
    assert state not in Path(f"/proc/{process.pid}/cmdline").read_text()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert token not in out + err
    assert "nobodys" not in out + err
