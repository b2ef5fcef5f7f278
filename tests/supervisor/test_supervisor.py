"""A real service of real processes: who is replaced, who is given up, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from windlass.lab.proofs.failover.requests import MODEL, write_model
from windlass.spec.errors import WindlassError
from windlass.spec.serve import Serve
from windlass.supervisor.background_service import watched
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.state import NOTHING, Patch, ServiceState
from windlass.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
ASK = {"model": MODEL, "prompt": "The rope", "max_tokens": 8, "temperature": 0}


class Wisher:
    """Wants what a test sets, once."""

    def __init__(self) -> None:
        self.next: DesiredService | None = None
        self.view: ServiceState | None = None

    def decide(self, view: ServiceState, now: float) -> Patch:
        self.view = view
        wanted, self.next = self.next, None
        return NOTHING if wanted is None else Patch(wanted)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@contextmanager
def serving(model: Path, logs: Path, wisher: Wisher, **settings: int) -> Iterator[Supervisor]:
    offer = ServiceSpec(f"{MODEL}@1", model, Serve(port=0, open=True, threads=1, **settings))  # type: ignore[arg-type]
    with watched(Supervisor(offer, logs, controllers=[wisher])) as service:
        yield service


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


def answer(service: Supervisor) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/completions", json=ASK, timeout=PATIENCE_S)


def test_a_gateway_and_an_engine_that_end_are_replaced_and_children_end_with_the_service(
    model: Path, tmp_path: Path
) -> None:
    with serving(model, tmp_path, Wisher(), gateways=2) as service:
        url, before = service.url, [gateway.pid for gateway in service.gateways]
        os.kill(before[0], signal.SIGKILL)
        until(lambda: service.gateways[0].pid != before[0] and service.gateways[0].url == url)
        (engine,) = service.replicas.values()
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: engine.name not in service.replicas)
        assert answer(service).status_code == 200  # waits until the next one is there
        pids = [each.pid for each in (*service.gateways, *service.replicas.values())]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_version_takes_over_with_no_request_lost_and_one_that_cannot_be_loaded_never_takes_any(
    model: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(model, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    wisher = Wisher()
    with serving(model, tmp_path, wisher) as service:
        old = service.wanted.groups[0]
        bad = ReplicaGroup((Item(f"{MODEL}@2", damaged),), weight=1.0)
        wisher.next = service.wanted.with_group(bad)
        until(lambda: f"{MODEL}@2" in service.given_up)
        assert answer(service).headers["x-windlass-served-by"] == f"{MODEL}@1"
        new = ReplicaGroup((Item(f"{MODEL}@3", model),))
        wisher.next = DesiredService((replace(old, weight=0.0), new))
        until(lambda: [each.phase for each in service.view().of(f"{MODEL}@3")] == ["ready"])
        until(lambda: answer(service).headers["x-windlass-served-by"] == f"{MODEL}@3")
        with httpx.stream(
            "POST",
            f"{service.url}/v1/completions",
            json=ASK | {"model": f"{MODEL}@1", "stream": True, "max_tokens": 400},
            timeout=PATIENCE_S,
        ) as response:
            arriving = response.iter_lines()
            next(arriving)
            wisher.next = DesiredService((new,))
            lines = [line for line in arriving if line]
        assert lines[-1] == "data: [DONE]"
        until(lambda: not service.view().of(f"{MODEL}@1"))
        assert answer(service).json()["model"] == f"{MODEL}@3"


def test_a_standby_answers_while_the_wanted_version_has_no_replica(model: Path, tmp_path: Path) -> None:
    standby = (Item(f"{MODEL}@1", model),)
    offer = ServiceSpec(f"{MODEL}@2", model, Serve(port=0, open=True, threads=1), standby=standby)
    with watched(Supervisor(offer, tmp_path)) as service:
        assert "x-windlass-standby" not in answer(service).headers
        (wanted,) = [each for each in service.replicas.values() if each.version == f"{MODEL}@2"]
        os.kill(wanted.pid, signal.SIGSTOP)
        said = answer(service)
        assert said.headers["x-windlass-standby"] == "true"
        assert said.headers["x-windlass-served-by"] == f"{MODEL}@1"


def test_a_model_that_cannot_be_served_ends_the_start_with_the_engines_own_words(
    model: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(model, tmp_path / "damaged")
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(config | {"hidden_size": 7}))
    with pytest.raises(WindlassError, match=r"config\.json") as told:
        Supervisor(ServiceSpec(MODEL, damaged, Serve(port=0, open=True)), tmp_path).__enter__()
    assert told.value.exit_code == 2


def test_the_control_process_is_started_again_and_ends_with_the_service(model: Path, tmp_path: Path) -> None:
    offer = ServiceSpec(f"{MODEL}@1", model, Serve(port=0, open=True, threads=1))
    with watched(Supervisor(offer, tmp_path / "logs", control=tmp_path)) as service:
        url, control = f"{service.url}/admin/control/v1/jobs", service._control
        assert control is not None
        until(lambda: httpx.get(url, timeout=PATIENCE_S).status_code == 200)
        assert control.socket.stat().st_mode & 0o777 == 0o600
        assert control.socket.with_suffix(".key").stat().st_mode & 0o777 == 0o600
        before = control.process
        assert before is not None
        key = control.socket.with_suffix(".key").read_text()
        for process in (before, *service.gateways):
            assert key.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert key.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: control.process not in (None, before))
        until(lambda: httpx.get(url, timeout=PATIENCE_S).status_code == 200)
        assert answer(service).status_code == 200
        after = control.process
        assert after is not None
    assert not Path(f"/proc/{after.pid}").exists()


def test_a_control_process_that_never_starts_takes_nothing_with_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.supervisor.control_child.CONTROL_API", "windlass.no_such_module")
    offer = ServiceSpec(f"{MODEL}@1", model, Serve(port=0, open=True, threads=1))
    said: list[str] = []
    with watched(Supervisor(offer, tmp_path / "logs", say=said.append, control=tmp_path)) as service:
        until(lambda: bool(said))
        told = httpx.get(f"{service.url}/admin/control/v1/jobs", timeout=PATIENCE_S)
        assert told.json()["error"]["code"] == "control_unavailable"
        assert answer(service).status_code == 200
    assert said == ["the control process ended with code 1; starting it again"]
