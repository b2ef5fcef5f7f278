"""Known questions, asked of real engines: healthy ones, wrong ones and silent ones."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.server import Server
from windlass.serve.engine.step import EngineSettings
from windlass.serve.records.golden_answers import KNOWN
from windlass.spec.protocol.wire import Generate, ModelInfo
from windlass.spec.rollout import HealthChecks
from windlass.spec.shape import DecoderShape
from windlass.store.database import Database, open_database, sqlite_url
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.health.engine_client import EngineClient, NoAnswer
from windlass.supervisor.health.golden_prompts import (
    GoldenAnswer,
    differs,
    golden_answer_of,
    golden_prompts_for,
)
from windlass.supervisor.health.monitor import HealthWatch
from windlass.supervisor.health.prober import Probed, Prober, ProbeTarget
from windlass.supervisor.state import RunningReplica, ServiceState

SHAPE = DecoderShape(vocabulary=300, context=256, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48)
OFFERED = ModelInfo("tiny@1", "llama", SHAPE.parameters, SHAPE.context, SHAPE.vocabulary, SHAPE.width)
HEALTH = HealthChecks(within=20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_model(build(SHAPE, seed=1), folder)
    return folder


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = open_database(sqlite_url(tmp_path / "service.db"), [KNOWN])
    yield database
    database.close()


@contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """An engine in a thread, on a socket of its own."""
    scratch = Path(tempfile.mkdtemp(prefix="wl-"))
    engine = load_engine(folder, LoadOptions(EngineSettings(slots=4), threads=1))
    server = Server(engine, [OFFERED], 4, scratch / "s")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield scratch / "s"
    finally:
        server.stop()
        thread.join()
        shutil.rmtree(scratch)


def flipped(folder: Path, target: Path, bit: int = 30) -> Path:
    """Copy a model with one bit of one weight turned over, a high one of the exponent."""
    shutil.copytree(folder, target)
    file = next(target.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    (head,) = struct.unpack_from("<Q", data)
    at = 8 + head + (len(data) - 8 - head) // 2 // 4 * 4 + bit // 8
    data[at] ^= 1 << (bit % 8)
    file.write_bytes(data)
    return target


def prober(path: Path, folder: Path, db: Database) -> Prober:
    """A prober to be stepped by hand."""
    found: queue.SimpleQueue[Probed] = queue.SimpleQueue()
    return Prober(ProbeTarget("r1", path, (("tiny@1", folder),)), HEALTH, db, found)


def test_a_healthy_engine_answers_rightly_again_and_again(model: Path, db: Database) -> None:
    with serving(model) as path:
        one = prober(path, model, db)
        grades = [one.step(number).grade for number in range(14)]
    assert grades == ["right"] * 14


def test_another_engine_of_the_same_version_gives_the_answers_that_were_recorded(
    model: Path, db: Database
) -> None:
    for _ in range(2):
        with serving(model) as path:
            assert prober(path, model, db).step(0).grade == "right"
    assert len(db.read("SELECT version FROM known_answers")) == 1


def test_one_flipped_bit_in_the_weights_is_found(model: Path, db: Database, tmp_path: Path) -> None:
    with serving(model) as path:
        prober(path, model, db).step(0)
    with serving(flipped(model, tmp_path / "bad")) as path:
        one = prober(path, model, db)
        found = [one.step(number) for number in range(6)]
    assert any(each.grade == "wrong" and each.why.startswith("wrong: ") for each in found)


def test_answers_do_not_change_while_clients_keep_the_engine_busy(model: Path, db: Database) -> None:
    with serving(model) as path, EngineClient(path) as client:
        for number in range(6):
            client._send(Generate(f"c{number}", [number + 1] * 40, 180, seed=number))
        one = prober(path, model, db)
        assert [one.step(number).grade for number in range(12)] == ["right"] * 12


def test_an_engine_that_is_not_there_is_silent(tmp_path: Path, model: Path, db: Database) -> None:
    probed = prober(tmp_path / "nowhere", model, db).step(0)
    assert probed.grade == "silent"
    assert "cannot be reached" in probed.why


def test_an_engine_that_never_says_a_word_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.supervisor.health.engine_client.CONNECT_S", 0.1)
    scratch = Path(tempfile.mkdtemp(prefix="wl-"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scratch / "s"))
        listener.listen()
        with pytest.raises(NoAnswer, match="in time"):
            EngineClient(scratch / "s")
    shutil.rmtree(scratch)


def test_questions_are_the_same_everywhere_and_fit_the_context() -> None:
    assert golden_prompts_for(OFFERED) == golden_prompts_for(OFFERED)
    short = ModelInfo("x", "llama", 1, 16, 10, 8)
    assert all(len(each.prompt) <= 8 and max(each.prompt) < 10 for each in golden_prompts_for(short))


def test_what_is_no_number_is_never_recorded_and_never_right(model: Path) -> None:
    with serving(model) as path, EngineClient(path) as asker:
        heard = asker.ask(golden_prompts_for(OFFERED)[0].request("tiny@1"), 20)
    expected = golden_answer_of(heard)
    assert isinstance(expected, GoldenAnswer)
    assert differs(expected, heard) == ""
    heard.scores[1] = float("nan")
    assert golden_answer_of(heard) is None
    assert "off by inf" in differs(expected, heard)


def test_a_wrong_replica_is_replaced_and_its_healthy_neighbour_left_alone(
    model: Path, db: Database, tmp_path: Path
) -> None:
    health = HealthChecks(within=20, every=0.05)
    group = ReplicaGroup((Item("tiny@1", model),), replicas=2)
    with serving(model) as good, serving(flipped(model, tmp_path / "bad")) as bad:
        prober(good, model, db).step(0)
        watch = HealthWatch(health, db)
        view = ServiceState(DesiredService((group,)), (running("good", good), running("bad", bad)))
        changes = settled(watch, view)
        watch.close()
    assert set(changes) == {"bad"}
    assert changes["bad"].startswith("wrong")


def test_a_replica_takes_requests_after_its_first_right_answer(model: Path, db: Database) -> None:
    group = ReplicaGroup((Item("tiny@1", model),))
    with serving(model) as path:
        watch = HealthWatch(HealthChecks(within=20, every=0.05), db)
        newcomer = running("new", path)
        first = watch.decide(ServiceState(DesiredService((group,)), (newcomer,)), 0.0)
        unhealthy = ServiceState(DesiredService((group,)), (replace(newcomer, phase="unhealthy"),))
        wait = threading.Event()
        for step in range(600):
            later = watch.decide(unhealthy, float(step))
            if later.healthy or wait.wait(0.05):
                break
        watch.close()
    assert first.unhealthy == {"new": "not probed yet"}
    assert later.healthy == {"new"}


def test_answers_of_earlier_starts_are_forgotten_where_that_is_requested(model: Path, db: Database) -> None:
    with serving(model) as path:
        prober(path, model, db).step(0)
        recorded = db.read("SELECT made FROM known_answers")
        group = ReplicaGroup((Item("tiny@1", model),))
        watch = HealthWatch(HealthChecks(remember=False, within=20), db)
        watch.decide(ServiceState(DesiredService((group,)), (running("one", path),)), 0.0)
        watch.close()
    assert db.read("SELECT made FROM known_answers") != recorded


def running(name: str, path: Path) -> RunningReplica:
    return RunningReplica(name, "tiny@1", path, os.getpid(), "ready", 0.0, 0.0)


def settled(watch: HealthWatch, view: ServiceState) -> dict[str, str]:
    """Step until somebody is to be replaced."""
    wait = threading.Event()
    for step in range(600):
        replace = watch.decide(view, float(step)).replace
        if replace:
            return dict(replace)
        wait.wait(0.05)
    raise AssertionError("nobody was found to be wrong")
