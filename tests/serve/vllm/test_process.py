"""The vLLM process contract, with a stand-in for the `vllm` program that speaks its protocol."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.spec.protocol.wire import (
    LENGTH,
    Cancel,
    Embed,
    EngineLoad,
    Failed,
    FromEngine,
    Generate,
    Message,
    PromptScores,
    Ready,
    Tokens,
    frame,
    from_engine,
)

STAND_IN = Path(__file__).with_name("stand_in.py")
PATIENCE_S = 60.0

pytestmark = pytest.mark.slow


class Running:
    """The process under test, its folder, and a client on its socket."""

    def __init__(self, folder: Path, *args: str, script: dict[str, str] | None = None) -> None:
        self.folder = folder
        config = {"model_type": "qwen2", "vocab_size": 100, "hidden_size": 8, "max_position_embeddings": 32}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "script.json").write_text(json.dumps(script or {}))
        self.path = folder / "s"
        command = [sys.executable, "-m", "windlass.serve.vllm", "--model", str(folder), "--name", "base"]
        command += ["--socket", str(self.path), "--executable", str(STAND_IN), "--slots", "3", *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._file: Any = None

    def connect(self) -> FromEngine:
        until(lambda: self.path.exists() or self.process.poll() is not None)
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.settimeout(PATIENCE_S)
        self.stream.connect(str(self.path))
        self._file = self.stream.makefile("rb")
        return self.next()

    def send(self, *messages: Message) -> None:
        self.stream.sendall(b"".join(frame(message) for message in messages))

    def next(self) -> FromEngine:
        (size,) = LENGTH.unpack(self._file.read(LENGTH.size))
        return from_engine.decode(self._file.read(size))

    def answer(self, id_: str) -> list[FromEngine]:
        """Everything said about a request, to its end."""
        said: list[FromEngine] = []
        while True:
            message = self.next()
            if isinstance(message, EngineLoad | Ready) or message.id != id_:
                continue
            said.append(message)
            if isinstance(message, Failed) or (isinstance(message, Tokens) and message.finish is not None):
                return said

    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "heard.jsonl").read_text().splitlines()]

    @property
    def child(self) -> int:
        return int(self.heard()[0]["pid"])


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    # Unix socket paths are short; pytest's own folders may be too long for one.
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    running: list[Running] = []

    def begin(*args: str, script: dict[str, str] | None = None) -> Running:
        running.append(Running(folder, *args, script=script))
        return running[-1]

    yield begin
    for one in running:
        one.process.terminate()
        one.process.communicate(timeout=PATIENCE_S)
    shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def tokens_of(said: list[FromEngine]) -> list[int]:
    return [token for message in said if isinstance(message, Tokens) for token in message.tokens]


def test_it_introduces_what_vllm_serves(start: Callable[..., Running]) -> None:
    running = start("--engine-args", "--dtype half --max-model-len 64")
    ready = running.connect()
    assert isinstance(ready, Ready)
    assert (ready.model, ready.family, ready.engine) == ("base", "qwen2", "vllm")
    assert (ready.context, ready.vocabulary, ready.width, ready.slots) == (64, 100, 8, 3)
    command = running.heard()[0]["command"]
    assert command[:2] == ["serve", str(running.folder)]
    assert command[-4:] == ["--dtype", "half", "--max-model-len", "64"]
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_answers_stream_with_their_scores(start: Callable[..., Running]) -> None:
    running = start()
    running.connect()
    running.send(Generate("a", [7, 8], 3, logprobs=2, score_prompt=True), Generate("b", [5], 2))
    said = running.answer("a")
    assert isinstance(said[0], PromptScores)
    assert said[0].logprobs == [-1.0]
    assert tokens_of(said) == [7, 8, 7]
    assert all(len(rivals) == 2 for m in said[1:] if isinstance(m, Tokens) for rivals in m.alternatives)


def test_a_slow_start_is_waited_for(start: Callable[..., Running]) -> None:
    running = start(script={"start": "slow"})
    assert isinstance(running.connect(), Ready)


def test_a_program_that_crashes_at_its_start_is_reported(start: Callable[..., Running]) -> None:
    running = start(script={"start": "crash"})
    out, _ = running.process.communicate(timeout=PATIENCE_S)
    assert running.process.returncode == 1
    assert "vLLM ended with code 1" in json.loads(out)["error"]["message"]


def test_a_program_that_is_not_there_is_reported_with_what_to_install(start: Callable[..., Running]) -> None:
    running = start("--executable", "no-such-vllm")
    out, _ = running.process.communicate(timeout=PATIENCE_S)
    assert running.process.returncode == 2
    error = json.loads(out)["error"]
    assert "no-such-vllm" in error["message"]
    assert "pip install vllm" in error["hint"]


@pytest.mark.parametrize(
    ("wrong", "code"), [("garbage", "engine_failed"), ("cut", "gave_up"), ("error", "engine_failed")]
)
def test_an_answer_that_goes_wrong_fails_alone(start: Callable[..., Running], wrong: str, code: str) -> None:
    running = start(script={"answer": wrong})
    running.connect()
    running.send(Generate("a", [7], 5), Generate("b", [8], 1))
    assert [message.finish for message in running.answer("b") if isinstance(message, Tokens)] == ["length"]
    running.send(Generate("c", [7], 5))
    last = running.answer("c")[-1]
    assert isinstance(last, Failed)
    assert last.code == code


def test_what_vllm_refuses_is_passed_on_in_its_words(start: Callable[..., Running]) -> None:
    running = start()
    running.connect()
    running.send(Generate("a", [100], 1))
    assert running.answer("a") == [
        Failed("a", "bad_request", "vLLM refused: Token id 100 is out of vocabulary")
    ]


def test_embeddings_are_refused(start: Callable[..., Running]) -> None:
    running = start()
    running.connect()
    running.send(Embed("a", [[1]]))
    said = running.answer("a")[0]
    assert isinstance(said, Failed)
    assert said.code == "bad_request"


def test_a_cancelled_answer_closes_its_stream(start: Callable[..., Running]) -> None:
    running = start(script={"answer": "slow"})
    running.connect()
    running.send(Generate("a", [7], 60))
    running.next()
    running.send(Cancel("a"))
    assert running.answer("a")[-1] == Tokens("a", finish="cancelled")
    until(lambda: {"left": [7]} in running.heard())


def test_a_gateway_that_goes_takes_its_answers_along(start: Callable[..., Running]) -> None:
    running = start(script={"answer": "slow"})
    running.connect()
    running.send(Generate("a", [7], 60))
    running.next()
    running.stream.shutdown(socket.SHUT_RDWR)
    until(lambda: {"left": [7]} in running.heard())


def test_the_death_of_vllm_ends_the_process_and_its_socket(start: Callable[..., Running]) -> None:
    running = start(script={"answer": "die"})
    running.connect()
    running.send(Generate("a", [7], 5))
    out, _ = running.process.communicate(timeout=PATIENCE_S)
    assert running.process.returncode == 1
    assert "vLLM ended with code 7" in json.loads(out)["error"]["message"]
    assert not running.path.exists()


def test_a_stop_ends_vllm_too(start: Callable[..., Running]) -> None:
    running = start()
    running.connect()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE_S) == 0
    assert not lives(running.child)
    assert not running.path.exists()


def test_vllm_does_not_outlive_a_process_that_is_killed(start: Callable[..., Running]) -> None:
    running = start()
    running.connect()
    running.process.kill()
    until(lambda: not lives(running.child))


def test_adapters_are_loaded_by_name(start: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 12}')
    running = start("--adapter", f"poet={tmp_path}")
    ready = running.connect()
    assert isinstance(ready, Ready)
    assert ready.adapters == ["poet"]
    command = running.heard()[0]["command"]
    assert command[command.index("--max-lora-rank") + 1] == "16"
    assert f"poet={tmp_path}" in command
    running.send(Generate("a", [7], 1, adapter="poet"))
    running.answer("a")
    assert running.heard()[-1]["ask"]["model"] == "poet"
