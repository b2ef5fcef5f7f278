"""The engine on its socket: first in this process, then as the process that is really started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.serve.engine.__main__ import main
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.server import Server, listen
from windlass.serve.engine.step import Engine, EngineSettings
from windlass.spec.errors import BadInput, InUse
from windlass.spec.protocol.entrypoint import exit_code_of
from windlass.spec.protocol.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    Cancel,
    Embed,
    EmbeddingVectors,
    EngineLoad,
    Failed,
    FromEngine,
    Generate,
    Message,
    MessageBatch,
    ModelInfo,
    Ping,
    Pong,
    Ready,
    Tokens,
    frame,
    from_engine,
    separated,
)  # fmt: skip
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=300, context=4096, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48)
OFFERED = ModelInfo("tiny@1", "llama", SHAPE.parameters, 4096, 300, 32, adapters=["poet"])
PATIENCE_S = 60.0


class Client:
    """A plain client: blocking, one frame at a time."""

    def __init__(self, path: Path) -> None:
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.settimeout(PATIENCE_S)
        self.stream.connect(str(path))
        self.file = self.stream.makefile("rb")
        self._heard: list[FromEngine] = []

    def send(self, *messages: Message) -> None:
        self.stream.sendall(b"".join(frame(message) for message in messages))

    def receive(self) -> FromEngine:
        """Return the next message; those that came as one are taken apart."""
        while not self._heard:
            message = self.receive_frame()
            self._heard += separated(message) if isinstance(message, MessageBatch) else [message]
        return self._heard.pop(0)

    def receive_frame(self) -> FromEngine:
        (size,) = LENGTH.unpack(self.file.read(LENGTH.size))
        return from_engine.decode(self.file.read(size))

    def until(self, wanted: Callable[[FromEngine], bool]) -> list[FromEngine]:
        got = [self.receive()]
        while not wanted(got[-1]):
            got.append(self.receive())
        return got

    def close(self) -> None:
        self.file.close()
        self.stream.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, as sockets need."""
    path = Path(tempfile.mkdtemp(prefix="wl"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "model"
    save_model(build(SHAPE, seed=1), path)
    return path


@pytest.fixture
def engine(model_directory: Path) -> Engine:
    loaded = load_engine(model_directory, LoadOptions(EngineSettings(slots=2, drafts=False), threads=1))
    assert isinstance(loaded, Engine)
    return loaded


@pytest.fixture
def served(engine: Engine, folder: Path) -> Iterator[Path]:
    path = folder / "engine.sock"
    server = Server(engine, [OFFERED], 2, path)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield path
    server.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not path.exists()


def test_every_connection_is_greeted_with_what_is_served(served: Path) -> None:
    for _ in range(2):
        client = Client(served)
        ready = client.receive()
        assert ready == Ready(
            "tiny@1", "llama", SHAPE.parameters, 4096, 300, 32, 2, os.getpid(), adapters=["poet"]
        )
        client.close()


def test_tokens_and_vectors_come_back_over_the_wire(served: Path) -> None:
    client = Client(served)
    client.send(Generate("text", [1, 2, 3], 5, seed=3), Embed("vectors", [[1, 2], [3]]))
    got = [m for m in client.until(_ends({"text", "vectors"})) if isinstance(m, Tokens | EmbeddingVectors)]
    assert sum(len(m.tokens) for m in got if isinstance(m, Tokens)) == 5
    assert [len(m.vectors) for m in got if isinstance(m, EmbeddingVectors)] == [2]
    client.close()


def test_ids_of_two_connections_do_not_meet(served: Path) -> None:
    clients = [Client(served), Client(served)]
    for seed, client in enumerate(clients):
        client.send(Generate("same", [1], 8, seed=seed))
    texts = [
        [t for m in c.until(_ends({"same"})) if isinstance(m, Tokens) for t in m.tokens] for c in clients
    ]
    assert [len(text) for text in texts] == [8, 8]
    assert texts[0] != texts[1]
    for client in clients:
        client.close()


def test_load_is_reported_when_the_engine_falls_idle(served: Path) -> None:
    client = Client(served)
    client.send(Generate("text", [1] * 40, 3))
    last = client.until(lambda m: isinstance(m, EngineLoad) and m.running == 0)[-1]
    assert isinstance(last, EngineLoad)
    assert (last.tokens, last.waiting) == (3, 0)
    assert (last.blocks, last.blocks_cached) == (0, 2)
    assert last.blocks_in_all >= 256
    client.close()


def test_what_a_step_says_to_one_connection_is_one_frame(served: Path) -> None:
    client = Client(served)
    client.send(Generate("a", [1], 30, seed=1), Generate("b", [2], 30, seed=2))
    frames = [client.receive_frame()]
    ended: set[str] = set()
    while ended != {"a", "b"}:
        frames.append(client.receive_frame())
        last = frames[-1]
        told = separated(last) if isinstance(last, MessageBatch) else [last]
        ended |= {m.id for m in told if isinstance(m, Tokens) and m.finish}
    joined = [m for m in frames if isinstance(m, MessageBatch)]
    assert len(joined) > 20
    assert all(set(m.tokens) == {"a", "b"} for m in joined if not m.others)
    client.close()


def test_a_ping_is_answered_while_the_engine_computes_and_while_it_rests(served: Path) -> None:
    client = Client(served)
    client.send(Ping(7))
    (idle,) = (m for m in client.until(lambda m: isinstance(m, Pong)) if isinstance(m, Pong))
    assert (idle.number, idle.running, idle.step_s) == (7, 0, 0.0)
    client.send(Generate("long", [1], 4000))
    client.until(lambda m: isinstance(m, Tokens))
    client.send(Ping(8))
    (busy,) = (m for m in client.until(lambda m: isinstance(m, Pong)) if isinstance(m, Pong))
    assert (busy.number, busy.running, busy.waiting) == (8, 1, 0)
    assert busy.steps > idle.steps
    assert busy.longest_s > 0
    client.close()


def test_a_request_for_a_model_that_is_not_served_is_refused(served: Path) -> None:
    client = Client(served)
    client.send(Generate("other", [1], 3, model="huge@7"), Generate("mine", [1], 3, model="tiny@1"))
    got = client.until(_ends({"other", "mine"}))
    assert [(m.id, m.code) for m in got if isinstance(m, Failed)] == [("other", "unknown_model")]
    client.close()


def test_a_connection_that_vanishes_frees_its_slots(served: Path, engine: Engine) -> None:
    vanishing, staying = Client(served), Client(served)
    vanishing.send(*(Generate(str(i), [1], 4000) for i in range(4)))
    vanishing.until(lambda m: isinstance(m, Tokens))
    vanishing.close()
    staying.send(Generate("mine", [1], 3))
    staying.until(_ends({"mine"}))
    assert engine.steps < 3000
    assert engine.blocks_used == 0
    staying.close()


def test_a_cancelled_request_ends_and_says_so(served: Path) -> None:
    client = Client(served)
    client.send(Generate("long", [1], 4000))
    client.until(lambda m: isinstance(m, Tokens))
    client.send(Cancel("long"))
    last = client.until(_ends({"long"}))[-1]
    assert isinstance(last, Tokens)
    assert last.finish == "cancelled"
    client.close()


@pytest.mark.parametrize(
    "rubbish",
    [
        LENGTH.pack(3) + b"abc",
        LENGTH.pack(MAX_FRAME_BYTES + 1),
        frame(Ready("not", "for", 1, 1, 1, 1, 1, 1)),
        b"\x07",
    ],
    ids=["no msgpack", "too large", "not for engines", "torn"],
)
def test_rubbish_ends_its_own_connection_only(served: Path, rubbish: bytes) -> None:
    bad, good = Client(served), Client(served)
    bad.receive()
    bad.stream.sendall(rubbish)
    bad.stream.shutdown(socket.SHUT_WR)
    assert bad.file.read(1) == b""
    good.send(Generate("text", [1], 2))
    good.until(_ends({"text"}))
    for client in (bad, good):
        client.close()


def test_a_client_that_does_not_read_does_not_hold_up_the_others(served: Path) -> None:
    silent, good = Client(served), Client(served)
    silent.send(*(Embed(str(i), [[1]] * 200) for i in range(20)))
    good.send(Generate("text", [1], 5))
    good.until(_ends({"text"}))
    for client in (silent, good):
        client.close()


def test_the_socket_is_for_its_user_only_and_a_stale_one_is_replaced(folder: Path) -> None:
    path = folder / "engine.sock"
    first = listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InUse, match="another engine is listening"):
        listen(path)
    first.close()
    listen(path).close()


def test_a_path_too_long_for_a_socket_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="too long for the path of a Unix socket"):
        listen(folder / ("x" * 120))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--slots", "0"], "must be at least 1"),
        ([], "required"),
        (["--model", "/nowhere/at/all"], "no such directory"),
    ],
    ids=["slots", "nothing", "model"],
)
def test_a_start_that_fails_is_reported_as_json(
    arguments: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ["--name", "it", "--socket", str(folder / "s")] if arguments else []
    assert exit_code_of(main, [*arguments, *rest]) == 2
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_the_process_serves_and_ends_cleanly_on_sigterm(model_directory: Path, folder: Path) -> None:
    path = folder / "engine.sock"
    process = subprocess.Popen(command(model_directory, path))
    try:
        client = connected(path, process)
        ready = client.receive()
        assert isinstance(ready, Ready)
        assert (ready.model, ready.process) == ("it", process.pid)
        client.send(Generate("text", [1, 2], 4, temperature=0.0), Generate("bad", [999], 1))
        got = client.until(_ends({"text", "bad"}))
        assert [m.code for m in got if isinstance(m, Failed)] == ["bad_tokens"]
        client.send(Generate("long", [1], 4000))
        client.until(lambda m: isinstance(m, Tokens))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
        client.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_process_ends_when_its_parent_is_gone(model_directory: Path, folder: Path) -> None:
    path = folder / "engine.sock"
    program = (
        f"import subprocess, sys, time; subprocess.Popen({command(model_directory, path)!r}); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        client = connected(path, parent)
        assert isinstance(client.receive(), Ready)
    finally:
        parent.kill()
        parent.wait()
    assert client.file.read() == b""  # ends when the engine does; the socket's timeout is the bound
    client.close()


def command(model: Path, path: Path) -> list[str]:
    start = [sys.executable, "-m", "windlass.serve.engine"]
    return [
        *start,
        "--model",
        str(model),
        "--name",
        "it",
        "--socket",
        str(path),
        "--slots",
        "2",
        "--threads",
        "1",
    ]


def connected(path: Path, process: subprocess.Popen[bytes]) -> Client:
    """Wait until the process listens; it is alive meanwhile."""
    while True:
        assert process.poll() is None
        try:
            return Client(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.05)


def _ends(ids: set[str]) -> Callable[[FromEngine], bool]:
    """Return a test that is true once the last message of every id was seen."""
    left = set(ids)

    def seen(message: FromEngine) -> bool:
        if isinstance(message, EmbeddingVectors | Failed) or (isinstance(message, Tokens) and message.finish):
            left.discard(message.id)
        return not left

    return seen
