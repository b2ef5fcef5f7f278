"""A gateway on a real port, and a scripted engine that speaks the real wire on a real Unix socket.

The engine answers with the prompt's own tokens, over and over, unless a test tells it otherwise.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from windlass.http.listener import bind, bounded_settings, url_of
from windlass.http.transport import HttpConnections
from windlass.serve.gateway.app import build_app
from windlass.serve.gateway.bootstrap import single_engine
from windlass.serve.gateway.edge.access import Access
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.observe.access_log import AccessLog
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.request_observer import RequestObserver
from windlass.serve.gateway.observe.traces import Traces
from windlass.serve.gateway.service import GatewayService
from windlass.serve.gateway.text.served_model import load_served
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import SCOPES, ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.limits import BrownOut, ServeLimits
from windlass.spec.protocol.wire import (
    LENGTH,
    Alternative,
    Cancel,
    Embed,
    EmbeddingVectors,
    EngineLoad,
    Failed,
    Finish,
    Generate,
    Message,
    ModelInfo,
    Ping,
    Pong,
    PromptScores,
    Ready,
    ToEngine,
    Tokens,
    frame,
    to_engine,
)
from windlass.spec.serve import Serve, Transport
from windlass.store.database import sqlite_url

PATIENCE_S = 60.0
MAKER = Actor("", "the tests")
CONTEXT = 128
WIDTH = 8
VOCABULARY = 400
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog. " * 3, "机器学习 is fun, 春花秋月何时了。 " * 3] * 20


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    train_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


class ScriptedEngine:
    """An engine without a model; what it does is set by its attributes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget every script, and all received messages."""
        self.received: list[ToEngine] = []
        self.slots = 4
        self.family = "llama"
        self.models: list[ModelInfo] = []
        self.stop_after: int | None = None
        self.held: set[int] | None = None
        self.fails: str | None = None
        self.dies_after: int | None = None  # the gateway reads what was sent before, in full
        self.revives = False
        self._is_dead = False
        self.pause_s = 0.0
        self.writes: Callable[[Generate], list[int]] | None = None
        self._holds: list[asyncio.Event] = []

    def start(self) -> None:
        if self._loop is not None:
            return
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_S)

    def stop(self) -> None:
        """Go as a killed process goes: the socket is closed in the middle of whatever it was."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(PATIENCE_S)
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let what is held go on."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self.held = None
        for each in self._holds:
            each.set()

    def wait_for(self, wanted: Callable[[list[ToEngine]], bool]) -> None:
        """Wait until what was received satisfies a condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self.received), PATIENCE_S), self.received

    def of(self, kind: type[Any]) -> list[Any]:
        with self._changed:
            return [message for message in self.received if isinstance(message, kind)]

    def _run(self, started: threading.Event) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        self._server = loop.run_until_complete(asyncio.start_unix_server(self._meet, str(self.path)))
        loop.call_soon(started.set)
        loop.run_forever()
        self._server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_dead:
            writer.close()
            return
        self._writers.add(writer)
        writer.write(
            frame(
                Ready(
                    model="scripted",
                    family=self.family,
                    parameters=1000,
                    context=CONTEXT,
                    vocabulary=VOCABULARY,
                    width=WIDTH,
                    slots=self.slots,
                    process=1,
                    models=self.models,
                )
            )
        )
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                message = to_engine.decode(await reader.readexactly(size))
                if writer not in self._writers:
                    continue  # of an engine that has ended
                if isinstance(message, Ping):
                    self._say(writer, Pong(message.number, 0, 0, 0))
                    continue
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
                self._begin(message, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self._writers.discard(writer)
            writer.close()

    def _begin(self, message: ToEngine, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Cancel):
            task = self._tasks.pop(message.id, None)
            if task is not None:
                task.cancel()
        elif self.fails is not None:
            self._say(writer, Failed(message.id, self.fails, "scripted to fail"))
        elif isinstance(message, Generate):
            self._tasks[message.id] = asyncio.get_running_loop().create_task(self._write(message, writer))
        elif isinstance(message, Embed):
            vectors = [[float(len(tokens)), *([0.5] * (WIDTH - 1))] for tokens in message.inputs]
            self._say(writer, EmbeddingVectors(message.id, vectors))

    async def _write(self, request: Generate, writer: asyncio.StreamWriter) -> None:
        self._say(writer, EngineLoad(running=1, waiting=2, steps=3, tokens=4, busy_s=0.5))
        if request.score_prompt:
            scores = [-1.0] * (len(request.tokens) - 1)
            self._say(writer, PromptScores(request.id, scores, [[Alternative(5, -0.1)] for _ in scores]))
        tokens = (
            self.writes(request)
            if self.writes
            else [request.tokens[i % len(request.tokens)] for i in range(1000)]
        )
        count = min(request.max_tokens, len(tokens), self.stop_after or 1000)
        if not request.max_tokens:
            self._say(writer, Tokens(request.id, finish="length"))
        for number in range(count):
            await asyncio.sleep(self.pause_s)
            if self.held is not None and number in self.held:
                self._holds.append(asyncio.Event())
                await self._holds[-1].wait()
            if self.dies_after == number:
                self._is_dead = not self.revives
                self._end_connections()
                return
            finish: Finish = "length" if count == request.max_tokens else "stop"
            scored = request.logprobs >= 0
            alternatives = [[Alternative(t, -2.0 - t) for t in range(4, 4 + request.logprobs)]]
            self._say(
                writer,
                Tokens(
                    request.id,
                    [tokens[number]],
                    logprobs=[-0.25] if scored else [],
                    alternatives=alternatives if scored else [],
                    finish=finish if number == count - 1 else None,
                ),
            )

    def _end_connections(self) -> None:
        """End all connections; each is closed once the gateway has read it to its end.

        If closed at once, it loses frames that the gateway has not read if the gateway writes before it
        reads (a ping is enough): then the attempt has gained nothing.
        """
        for writer in self._writers:
            writer.write_eof()
        self._writers.clear()

    def _say(self, writer: asyncio.StreamWriter, message: Message) -> None:
        if writer in self._writers and not writer.is_closing():
            writer.write(frame(message))


PATIENT = ServeLimits(wait=3600.0, brown_out=BrownOut(wait=1, refused=1, memory=1))
"""Limits that refuse nothing for time: the tests hold answers back for as long as they need."""


class WatchedServer(uvicorn.Server):
    """uvicorn with the gateway's connection watcher."""

    def __init__(self, config: uvicorn.Config, connections: HttpConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._connections.watch())


class RunningGateway:
    """The gateway's app under uvicorn, in a thread of this process."""

    def __init__(
        self,
        model: Path,
        engine: Path,
        *,
        name: str,
        queue: int,
        aliases: list[str],
        adapters: Sequence[str] = (),
        others: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
        access: Access | None = None,
        transport: Transport | None = None,
        serve: Serve | None = None,
        access_log: Path | None = None,
        traces: Traces | None = None,
    ) -> None:
        metrics = Metrics()
        first = load_served(model, name, aliases, adapters)
        served = (first, *(load_served(model, other) for other in others))
        self.fleet = ReplicaFleet(metrics, single_engine(served, engine), patience_s=patience_s)
        admission = AdmissionController(PATIENT, None, self.fleet, metrics, holder="test", queue=queue)
        self.service = GatewayService(served, self.fleet, metrics, admission)
        observer = RequestObserver(metrics, AccessLog(access_log) if access_log else None, traces)
        self.app = build_app(self.service, access or Access(), observer)
        self._listener = bind("127.0.0.1", 0)
        serve = serve or Serve(transport=transport or Transport())
        self.url = url_of("127.0.0.1", self._listener, secure=serve.tls_certificate is not None)
        self.connections = HttpConnections(serve.transport)
        settings = bounded_settings(serve, self.connections) | {"timeout_graceful_shutdown": 1}
        self._server = WatchedServer(uvicorn.Config(self.app, **settings), self.connections)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wait_until("/healthz", 200)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)

    def wait_until(self, path: str, status: int) -> None:
        """Ask until the status is the wanted one."""
        transport = httpx.HTTPTransport(retries=10, verify=False)
        until = time.monotonic() + PATIENCE_S
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S, transport=transport) as client:
            while (found := client.get(path)).status_code != status:
                assert time.monotonic() < until, f"{path} never answered {status}: {found} {found.text}"
                time.sleep(0.001)

    def settle(self) -> None:
        """Wait until the engine is connected and all requests of earlier tests have ended."""
        self.wait_until("/readyz", 200)
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            until = time.monotonic() + PATIENCE_S
            while self.fleet.tasks:
                assert time.monotonic() < until, f"{len(self.fleet.tasks)} answers are still under way"
                client.get("/healthz")


class GivenKeys:
    """Keys in a real database, by name: user, metrics, admin, revoked and expired."""

    def __init__(self, folder: Path) -> None:
        self.keys = ApiKeys(open_state(sqlite_url(folder / "service.db")))
        self.tokens = {
            name: self.keys.make(name, MAKER, scopes=scopes)[1]
            for name, scopes in (
                ("user", ["use"]),
                ("metrics", ["metrics"]),
                ("admin", ["use", "admin", "metrics"]),
                ("revoked", ["use", "admin", "metrics"]),
            )
        }
        self.keys.revoke("revoked", MAKER)
        before = ApiKeys(open_state(sqlite_url(folder / "service.db")), clock=lambda: time.time() - 60)
        self.tokens["expired"] = before.make("expired", MAKER, scopes=SCOPES, expires_s=time.time() - 30)[1]

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[name]}"}


@pytest.fixture(scope="session")
def given_keys(tmp_path_factory: pytest.TempPathFactory) -> GivenKeys:
    return GivenKeys(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def socket_path() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders may be too long for one.
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    yield folder / "engine"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_engine(socket_path: Path) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(socket_path)
    yield engine
    engine.stop()


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    """The module's engine, running and without a script."""
    shared_engine.reset()
    shared_engine.start()
    return shared_engine


@pytest.fixture(scope="module")
def start_shared(model_dir: Path, socket_path: Path) -> Iterator[Callable[..., RunningGateway]]:
    """Start gateways with given settings; all end with the module."""
    running: list[RunningGateway] = []

    def start(**settings: Any) -> RunningGateway:
        given: dict[str, Any] = {
            "name": "tiny@3",
            "queue": 4,
            "aliases": ["prod"],
            "model": model_dir,
        } | settings
        gateway = RunningGateway(given.pop("model"), socket_path, **given)
        gateway.start()
        running.append(gateway)
        return gateway

    yield start
    for gateway in running:
        gateway.stop()


@pytest.fixture
def start_gateway(engine: ScriptedEngine, start_shared: Callable[..., RunningGateway]) -> Callable[..., Any]:
    return start_shared


@pytest.fixture(scope="module")
def shared_gateway(start_shared: Callable[..., RunningGateway]) -> RunningGateway:
    return start_shared()


@pytest.fixture
def gateway(engine: ScriptedEngine, shared_gateway: RunningGateway) -> RunningGateway:
    shared_gateway.settle()
    return shared_gateway


@pytest.fixture(scope="module")
def shared_guarded(start_shared: Callable[..., RunningGateway], given_keys: GivenKeys) -> RunningGateway:
    return start_shared(access=Access(keys=given_keys.keys))


@pytest.fixture
def guarded(engine: ScriptedEngine, shared_guarded: RunningGateway) -> RunningGateway:
    """A gateway that needs keys and knows those of `given_keys`."""
    shared_guarded.settle()
    return shared_guarded


@pytest.fixture
def impatient(start_gateway: Callable[..., RunningGateway]) -> RunningGateway:
    """A gateway that refuses requests soon after its only engine is lost."""
    gateway = start_gateway(patience_s=0.5)
    gateway.settle()
    return gateway


@pytest.fixture
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as client:
        yield client
