"""The engines of `windlass bench serve`: ours and the peers installed by `bench/peers`.

A peer is a directory with its own Python, drivers and peer.json, which is written last, so an incomplete
environment does not count. Its driver speaks JSON lines (bench/drivers/conversation.py) and ends when its
standard input is closed, so nothing outlives the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from windlass.lab.bench.engine_process import BenchEngine
from windlass.lab.bench.task import BenchTask, TimedAnswer
from windlass.spec.errors import BadInput, NotFound, ProcessFailed, did_you_mean
from windlass.spec.protocol.wire import Failed, Generate, Tokens

PEERS = "WINDLASS_PEERS"
PEERS_IN = f"where bench/peers installed them (default: ${PEERS} or ~/.cache/windlass/peers)"
CARD = "peer.json"
OURS = "windlass"


@dataclass(frozen=True)
class ContenderLoad:
    """What a contender prepares for: model, precision and sizes."""

    model: Path
    precision: str
    threads: int
    slots: int
    context: int
    scratch: Path

    def encoded(self) -> str:
        return json.dumps(asdict(self), default=str) + "\n"


class EngineContender(Protocol):
    """An engine that has loaded the model and answers tasks."""

    name: str
    setting: str
    pid: int

    def answer(self, task: BenchTask) -> list[TimedAnswer]:
        """Answer all prompts, in their order."""


@dataclass(frozen=True)
class Peer:
    """An installed peer, as its card describes it."""

    name: str
    folder: Path
    driver: str
    precisions: list[str]


def installed_peers(folder: Path, wanted: Sequence[str] | None = None) -> list[Peer]:
    """Return the installed peers: all, or the wanted ones."""
    cards = {path.parent: json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{CARD}"))}
    peers = {
        card["name"]: Peer(card["name"], path, card["driver"], card["precisions"])
        for path, card in cards.items()
    }
    for name in wanted or ():
        if name not in peers:
            raise NotFound(f"peer '{name}' is not installed in {folder}", hint=_hint(name, list(peers)))
    return [peers[name] for name in (peers if wanted is None else wanted)]


def _hint(name: str, installed: list[str]) -> str:
    return did_you_mean(name, installed) if installed else "make the peers' environments: bench/peers"


def default_folder() -> Path:
    return Path(os.environ.get(PEERS) or "~/.cache/windlass/peers").expanduser()


class OurEngine:
    """Our engine. Every task has its own tenant, so that nothing is found in the prefix cache."""

    name = OURS

    def __init__(self, engine: BenchEngine) -> None:
        self._engine = engine
        self.pid = engine.pid
        self.setting = engine.client.ready.precision
        self._tasks = 0

    def answer(self, task: BenchTask) -> list[TimedAnswer]:
        self._tasks += 1
        client, waiting = self._engine.client, list(enumerate(task.prompts))[::-1]
        answers: dict[str, TimedAnswer] = {}
        open_count = 0
        while waiting or open_count:
            while waiting and open_count < task.concurrency:
                number, prompt = waiting.pop()
                request = Generate(
                    str(number), prompt, task.output, temperature=0.0, tenant=f"task{self._tasks}"
                )
                answers[request.id] = TimedAnswer(time.monotonic(), [], [])
                client.send(request)
                open_count += 1
            open_count -= self._receive(answers)
        return [answers[str(number)] for number in range(len(task.prompts))]

    def _receive(self, answers: dict[str, TimedAnswer]) -> int:
        """Process one message; return how many requests it ends."""
        message, came_s = self._engine.client.receive()
        if isinstance(message, Failed):
            raise ProcessFailed(f"our engine refused a request: {message.message}")
        if not isinstance(message, Tokens):
            return 0
        answer = answers[message.id]
        answer.tokens.extend(message.tokens)
        answer.times_s.extend([came_s] * len(message.tokens))
        return int(message.finish is not None)


class PeerProcess:
    """A peer's driver, with the model loaded."""

    def __init__(self, peer: Peer, popen: subprocess.Popen[str], load: ContenderLoad, log: Path) -> None:
        self.name, self.pid = peer.name, popen.pid
        self._popen, self._log = popen, log
        reply = self._ask(load.encoded())
        if "cannot" in reply:
            raise BadInput(f"{peer.name}: {reply['cannot']}", hint=f"its log is {log}")
        self.version, self.setting = reply["ready"]["version"], reply["ready"]["setting"]

    def answer(self, task: BenchTask) -> list[TimedAnswer]:
        reply = self._ask(json.dumps(asdict(task)) + "\n")
        return [TimedAnswer(**request) for request in reply["done"]["requests"]]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(line)
            said = self._popen.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise ProcessFailed(f"{self.name} ended with code {self._popen.wait()}", hint=f"see {self._log}")
        reply: dict[str, Any] = json.loads(said)
        return reply


@contextmanager
def our_engine(load: ContenderLoad, log: Path, options: Sequence[str] = ()) -> Iterator[OurEngine]:
    """Start our engine for a load, without speculative decoding: no peer here uses it."""
    arguments = ["--slots", str(load.slots), "--threads", str(load.threads)]
    arguments += ["--precision", load.precision, "--no-drafts", *options]
    with BenchEngine(load.model, log, arguments) as engine:
        yield OurEngine(engine)


@contextmanager
def peer_process(peer: Peer, load: ContenderLoad, log: Path) -> Iterator[PeerProcess]:
    """Start a peer's driver for a load in its own session, and end it with all its children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors_to:
        popen = subprocess.Popen(
            [str(peer.folder / "bin" / "python"), str(peer.folder / peer.driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_to,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
    try:
        yield PeerProcess(peer, popen, load, log)
    finally:
        popen.kill()
        popen.communicate()
