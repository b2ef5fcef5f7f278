"""`windlass serve --engine vllm`: the same gateway, a stand-in for the vLLM program behind it."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow

STAND_IN = Path(__file__).parents[1] / "serve" / "vllm" / "stand_in.py"
PATIENCE_S = 60.0


@contextlib.contextmanager
def serving(
    folder: Path, *, interrupt_ignored: bool = False
) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    config = {"model_type": "qwen2", "vocab_size": 100, "hidden_size": 8, "eos_token_id": 3}
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "windlass.cli", "serve", str(folder), "--port", "0", "--json"]
    command += ["--engine", "vllm", "--engine-executable", str(STAND_IN), "--home", str(folder / "home")]
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if interrupt_ignored else None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=ignore)
    assert process.stdout is not None
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the service ended before it answered"
            text += line
        told = json.loads(text)
        bearer = {"authorization": f"Bearer {told['key']}"}
        with httpx.Client(base_url=told["url"], timeout=PATIENCE_S, headers=bearer) as client:
            yield client, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()


def ask(client: httpx.Client, folder: Path, **more: Any) -> httpx.Response:
    body = {"model": folder.name, "prompt": [7, 8], "max_tokens": 4} | more
    return client.post("/v1/completions", json=body)


def stand_ins(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children(recursive=True) if str(STAND_IN) in one.cmdline()]


def test_sigint_stops_a_service_whose_parent_ignores_it(tmp_path: Path) -> None:
    with serving(tmp_path, interrupt_ignored=True) as (
        client,
        _,
    ):  # ended by SIGINT, with exit code 0
        assert ask(client, tmp_path).status_code == 200


def test_a_client_cannot_tell_vllm_from_our_engine(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, process):
        reply = ask(client, tmp_path, logprobs=1, echo=True).json()
        (choice,) = reply["choices"]
        assert choice["text"] == " 7 8 7 8 7 8"
        assert choice["finish_reason"] == "length"
        assert len(choice["logprobs"]["tokens"]) == 6
        assert client.get("/v1/models").json()["data"][0]["context_length"] == 64
        refused = ask(client, tmp_path, max_tokens=100)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        (child,) = stand_ins(process)
    assert not child.is_running()


def test_a_vllm_that_dies_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, process):
        (first,) = stand_ins(process)
        first.kill()
        deadline = time.monotonic() + PATIENCE_S
        while ask(client, tmp_path).status_code != 200 or first.pid in [c.pid for c in stand_ins(process)]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert ask(client, tmp_path).json()["choices"][0]["text"] == " 7 8 7 8"


def test_a_missing_program_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-m", "windlass.cli", "serve", str(tmp_path), "--port", "0"]
    command += ["--engine", "vllm", "--engine-executable", "no-such-vllm", "--home", str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "no-such-vllm" in done.stderr
    assert "pip install vllm" in done.stderr
