"""/admin/control: a real control process at a real socket, behind a real gateway with keys and state."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from windlass.control.api.app import build_app
from windlass.control.api.control_keys import GatewayKey
from windlass.control.api.control_server import bind_socket
from windlass.http.listener import settings
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.spec.settings import SETTINGS
from windlass.store.database import sqlite_url
from windlass.store.journal import Journal
from windlass.store.lock import locked
from windlass.store.store_dir import StoreDir
from windlass.supervisor.control_child import write_key

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
RUN = "/admin/control/v1/jobs/poems/1"
CHANGE = {"changes": {"train.log_every": 7}}
EVENTS = {"accept": "text/event-stream"}


class ControlServer:
    """The control API as the process of a service runs it, in a thread of this one."""

    def __init__(self, home: Path, socket: Path) -> None:
        self.socket, self.key = socket, write_key(socket)
        self._app = build_app(home, keys=GatewayKey(self.key.read_text()))
        own = {"loop": "asyncio", "timeout_graceful_shutdown": 1}
        self.server = uvicorn.Server(uvicorn.Config(self._app, **settings() | own))
        sockets = [bind_socket(socket)]
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": sockets}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        self.socket.unlink(missing_ok=True)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlServer]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    server = ControlServer(tmp_path, folder / "control")
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def admin(start_gateway: Any, tmp_path: Path, control: ControlServer) -> Iterator[httpx.Client]:
    state = open_state(sqlite_url(tmp_path / "service.db"))
    keys = ApiKeys(state)
    token = keys.make("root", Actor("", "test"), scopes=["admin", "use"])[1]
    gateway = start_gateway(access=Access(keys=keys))
    gateway.service.database = state
    gateway.service.control = Upstream.at(control.socket)
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, headers=headers) as client:
        yield client


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is planned and written down."""
    tables = {"name": "poems", "model": {"layers": 4, "width": 64}, "train": {"steps": 100}}
    corpus = CorpusFacts("corpus", "digest", 512, 1_000_000, 100_000)
    planned = plan_run(Job.model_validate(tables), corpus, MachineFacts(2, 8 << 30, 1e11, False))
    path = tmp_path / "runs" / "poems" / "1"
    StoreDir(path).write(RUN_FILE, planned.model_dump_json().encode())
    Journal(StoreDir(path), JOURNAL).append({"time": 1.0, "event": "step", "step": 1, "loss": float("nan")})
    return path


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def code_of(response: httpx.Response) -> tuple[int, str]:
    reply = response.json()["error"]
    assert reply["request_id"] == response.headers["x-request-id"]
    return response.status_code, str(reply["code"])


def test_what_the_control_process_reports_is_passed_on(admin: httpx.Client, run: Path) -> None:
    reply = admin.get(RUN)
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
    assert (reply.json()["run"], reply.json()["step"], reply.json()["loss"]) == ("poems/1", 1, None)
    assert admin.get("/admin/control/v1/jobs").json() == {"jobs": [reply.json()]}
    assert admin.get(f"{RUN}/journal?after=1").json() == {"records": [], "next": 1}
    assert admin.get("/admin/control/v1/models").json() == {"models": []}
    assert admin.get("/admin/control/v1/plan/choices").json()["objectives"] == ["time", "money", "memory"]


def test_a_change_is_in_the_audit_log_and_names_its_key_in_the_run(admin: httpx.Client, run: Path) -> None:
    assert admin.post(f"{RUN}/set", json=CHANGE).json()["request"]["log_every"] == 7
    assert json.loads((run / SETTINGS).read_bytes())["by"] == "root"
    last = admin.get("/admin/audit").json()["data"][-1]
    assert (last["who"], last["action"], last["target"], last["result"]) == (
        "root",
        "run.set",
        "poems/1",
        "requested",
    )
    assert json.loads(last["note"]) == CHANGE
    assert admin.get("/admin/audit/verify").json()["ok"]


def test_who_only_looks_or_plans_leaves_no_record(admin: httpx.Client, run: Path) -> None:
    before = admin.get("/admin/audit").json()
    admin.get(RUN)
    assert code_of(admin.post("/admin/control/v1/plan", json={"fleet": "8xH100"})) == (400, "refused")
    assert admin.get("/admin/audit").json() == before


def test_a_caller_cannot_claim_another_identity(admin: httpx.Client, run: Path) -> None:
    assert admin.post(f"{RUN}/set", json=CHANGE, headers={"x-windlass-by": "eve"}).status_code == 200
    assert json.loads((run / SETTINGS).read_bytes())["by"] == "root"


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "code"),
    [
        ("GET", "/v1/jobs/songs/1", {}, 404, "run_not_found"),
        ("GET", "/v1/jobs/poems/0", {}, 404, "not_found"),
        ("GET", "/v1/jobs/Poems/1", {}, 404, "not_found"),
        ("GET", "/v1/jobs/poems/1/weights", {}, 404, "not_found"),
        ("GET", "/healthz", {}, 404, "not_found"),
        ("GET", "/openapi.json", {}, 404, "not_found"),
        ("GET", "/", {}, 404, "not_found"),
        ("POST", "/v1/jobs", {"json": {}}, 405, "method_not_allowed"),
        ("GET", "/v1/plan", {}, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/poems", {}, 405, "method_not_allowed"),
        ("GET", "/v1/jobs/poems/1/journal?after=x", {}, 400, "invalid_value"),
        ("GET", "/v1/jobs/poems/1/journal?limit=0", {}, 400, "invalid_value"),
        ("POST", "/v1/jobs/poems/1/set", {"content": b"{}"}, 415, "unsupported_media_type"),
        ("POST", "/v1/jobs/poems/1/set", {"json": {"changes": {}}}, 400, "refused"),
        ("POST", "/v1/jobs/poems/1/set", {"json": {"changes": {"x" * 70_000: 1}}}, 413, "body_too_large"),
        ("POST", "/v1/models/poems/promote", {"json": {"version": 1}}, 404, "model_not_found"),
    ],
)
def test_what_cannot_be_is_refused_here_or_there(
    admin: httpx.Client, run: Path, method: str, path: str, more: dict[str, Any], status: int, code: str
) -> None:
    assert code_of(admin.request(method, f"/admin/control{path}", **more)) == (status, code)
    assert not (run / SETTINGS).exists()


def test_events_arrive_while_the_run_continues_and_end_with_it(admin: httpx.Client, run: Path) -> None:
    with locked(run / ".lock", "the run"), admin.stream("GET", f"{RUN}/journal", headers=EVENTS) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        assert json.loads(next(lines).removeprefix("data: "))["step"] == 1
    rest = admin.get(f"{RUN}/journal", headers=EVENTS | {"last-event-id": "1"}).text
    assert rest == "event: end\ndata: {}\n\n"


def test_a_client_that_leaves_ends_its_stream_in_the_control_process(
    admin: httpx.Client, control: ControlServer, run: Path
) -> None:
    with locked(run / ".lock", "the run"):
        with admin.stream("GET", f"{RUN}/journal", headers=EVENTS) as stream:
            assert next(stream.iter_lines()) == "id: 1"
            assert control.server.server_state.connections
        until(lambda: not control.server.server_state.connections)


def test_a_control_process_that_is_not_there_is_said_to_be_missing_and_comes_back(
    admin: httpx.Client, control: ControlServer, tmp_path: Path, run: Path
) -> None:
    control.stop()
    answer = admin.get("/admin/control/v1/jobs")
    assert code_of(answer) == (503, "control_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert admin.get(answer.json()["error"]["doc_url"]).status_code == 200
    assert admin.get("/v1/models").status_code == 200
    key = control.key.read_text()
    server = uvicorn.Server(
        uvicorn.Config(build_app(tmp_path, keys=GatewayKey(key)), **settings() | {"loop": "asyncio"})
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bind_socket(control.socket)]})
    thread.start()
    assert admin.get("/admin/control/v1/jobs").status_code == 200
    server.should_exit = True
    thread.join(PATIENCE_S)


def test_a_stream_whose_control_process_ends_says_so_last(
    admin: httpx.Client, control: ControlServer, run: Path
) -> None:
    with locked(run / ".lock", "the run"), admin.stream("GET", f"{RUN}/journal", headers=EVENTS) as stream:
        lines = stream.iter_lines()
        next(lines)
        control.stop()
        last = [line for line in lines if line][-2:]
    assert last[0] == "event: error"
    assert json.loads(last[1].removeprefix("data: "))["error"]["code"] == "control_unavailable"


def test_a_gateway_without_a_control_process_has_nothing_there(http: httpx.Client) -> None:
    assert code_of(http.get("/admin/control/v1/jobs")) == (404, "not_found")


def test_without_keys_the_run_records_an_anonymous_caller(
    http: httpx.Client, gateway: Any, control: ControlServer, run: Path
) -> None:
    gateway.service.control = Upstream.at(control.socket)
    try:
        assert http.post(f"{RUN}/set", json=CHANGE).status_code == 200
    finally:
        gateway.service.control = None
    assert json.loads((run / SETTINGS).read_bytes())["by"] == "anyone"
