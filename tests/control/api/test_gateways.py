"""The control API as gateways of a service reach it: by a socket, with one key, in somebody's name."""

import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from windlass.cli.main import main
from windlass.control.api.app import build_app
from windlass.control.api.control_keys import ControlKeys, GatewayKey
from windlass.control.api.control_server import bind_socket
from windlass.control.api.planner_pool import Planners
from windlass.http.listener import settings
from windlass.plan.cost.catalogue import device_named
from windlass.registry.versions import Registry
from windlass.runs.training import RunFolder
from windlass.spec.settings import SETTINGS
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

TOKEN = "the-key-of-the-gateways"
JOB = {"train": {"tokens": "10B", "batch_sequences": 64}}
ASKED = {"job": JOB, "fleet": "16xH100-SXM5", "sizes": "Llama-3.1-8B", "search": "greedy"}


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    yield folder / "control"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def app(path: Path) -> Iterator[FastAPI]:
    """One server for all tests, and the processes for plans that it keeps."""
    app = build_app(path.parent, keys=GatewayKey(TOKEN))
    server = uvicorn.Server(uvicorn.Config(app, **settings() | {"loop": "asyncio"}))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bind_socket(path)]})
    thread.start()
    yield app
    server.should_exit = True
    thread.join()


@pytest.fixture
def http(app: FastAPI, path: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    """A gateway, asked by ada; each test has a home of its own."""
    app.state.home = tmp_path
    headers = {"authorization": f"Bearer {TOKEN}", "x-windlass-by": "ada"}
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(
        transport=transport, base_url="http://localhost", headers=headers, timeout=60
    ) as client:
        yield client


@pytest.fixture
def models(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path)
    for number in range(3):
        writer = DirectoryWriter(StoreDir(tmp_path / f"made-{number}"))
        writer.write("config.json", b'{"dtype": "float32"}')
        lineage = {"parameters": 5, "steps": 10 * number, "metrics": {"loss": 2.0 - number / 10}}
        writer.write("windlass.json", json.dumps(lineage).encode())
        writer.commit({"kind": "model"})
        registry.register("poems", tmp_path / f"made-{number}")
    return registry


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    told = answer.json()["error"]
    assert set(told) == {"code", "type", "message", "hint", "request_id"}
    return answer.status_code, told["code"], told["message"]


def test_the_socket_is_its_owners_alone(app: FastAPI, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_change_carries_the_name_that_the_gateway_gives(
    http: httpx.Client, start: Callable[..., RunFolder]
) -> None:
    folder = start()
    change = {"changes": {"train.log_every": 3}}
    assert http.post("/v1/jobs/poems/1/set", json=change).status_code == 200
    assert json.loads((folder.path / SETTINGS).read_bytes())["by"] == "ada"
    change["changes"]["train.log_every"] = 4
    http.post("/v1/jobs/poems/1/set", json=change, headers={"x-windlass-by": "not a name"})
    assert json.loads((folder.path / SETTINGS).read_bytes())["by"] == "gateway"


def test_keys_of_the_home_do_not_open_the_socket_and_the_gateways_key_opens_nothing_else(
    http: httpx.Client, tmp_path: Path
) -> None:
    for token in (ControlKeys(tmp_path).make("owner"), "wrong", "x"):
        sent = {"authorization": f"Bearer {token}"}
        assert refused(http.get("/v1/jobs", headers=sent))[:2] == (401, "unauthorized")
    assert ControlKeys(tmp_path).find(TOKEN) is None


def test_versions_are_reported_with_their_lineage(http: httpx.Client, models: Registry) -> None:
    models.promote("poems@2")
    told = http.get("/v1/models").json()["models"]
    assert told == [http.get("/v1/models/poems").json()]
    assert (told[0]["name"], told[0]["aliases"]) == ("poems", {"prod": 2})
    assert [version["model"] for version in told[0]["versions"]] == ["poems@1", "poems@2", "poems@3"]
    second = told[0]["versions"][1]
    assert second == json.loads(
        json.dumps({**models.find("poems@2").facts(), "lineage": models.find("poems@2").lineage})
    )
    assert (second["aliases"], second["metrics"], second["lineage"]["steps"]) == (["prod"], {"loss": 1.9}, 10)


def test_a_version_is_promoted_and_rolled_back_as_on_the_command_line(
    http: httpx.Client, models: Registry
) -> None:
    assert http.post("/v1/models/poems/promote", json={"version": 1}).json()["aliases"] == ["prod"]
    assert refused(http.post("/v1/models/poems/rollback"))[:2] == (400, "refused")
    http.post("/v1/models/poems/promote", json={"version": 3})
    assert models.aliases("poems") == {"prod": 3, "previous": 1}
    assert http.post("/v1/models/poems/rollback").json()["model"] == "poems@1"
    assert models.aliases("poems") == {"prod": 1, "previous": 3}


@pytest.mark.parametrize(
    ("where", "body", "status", "code"),
    [
        ("/v1/models/songs/promote", {"version": 1}, 404, "model_not_found"),
        ("/v1/models/poems/promote", {"version": 9}, 404, "model_not_found"),
        ("/v1/models/poems@2/promote", {"version": 2}, 404, "model_not_found"),
        ("/v1/models/songs/rollback", {}, 404, "model_not_found"),
        ("/v1/models/poems/promote", {"version": "2"}, 400, "refused"),
        ("/v1/models/poems/promote", {"version": 0}, 400, "refused"),
        ("/v1/models/poems/promote", {}, 400, "refused"),
        ("/v1/models/poems/promote", {"versoin": 2}, 400, "refused"),
    ],
)
def test_what_cannot_be_promoted_is_refused(
    http: httpx.Client, models: Registry, where: str, body: dict[str, Any], status: int, code: str
) -> None:
    assert refused(http.post(where, json=body))[:2] == (status, code)
    assert models.aliases("poems") == {}


def test_a_model_that_is_not_there_is_reported_with_the_nearest(http: httpx.Client, models: Registry) -> None:
    answer = http.get("/v1/models/peoms")
    assert refused(answer)[:2] == (404, "model_not_found")
    assert "did you mean 'poems'" in answer.json()["error"]["hint"]


def test_what_can_be_chosen_can_be_planned_with(http: httpx.Client) -> None:
    told = http.get("/v1/plan/choices").json()
    assert set(told) == {"devices", "sizes", "objectives", "precisions", "searches"}
    for device in told["devices"]:
        assert device_named(device["name"]).memory_bytes == device["memory_bytes"]
    assert "Llama-3.1-8B" in [sizes["name"] for sizes in told["sizes"]]
    assert told["objectives"] == ["time", "money", "memory"]


def test_a_plan_is_the_one_that_the_command_line_prints(
    http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[train]\ntokens = "10B"\nbatch_sequences = 64\n')
    more = ["--search", "greedy", "--deadline", "9d", "--budget", "50k", "--more", "8", "--json"]
    assert main(["plan", str(job), "--fleet", "16xH100-SXM5", "--sizes", "Llama-3.1-8B", *more]) == 0
    printed = json.loads(capsys.readouterr().out)
    asked = ASKED | {"deadline": 9 * 86400, "budget": 50_000, "more": 8}
    told = http.post("/v1/plan", json=asked).json()
    assert {**told, "search_s": 0} == {**printed, "search_s": 0}


def test_a_fleet_may_be_tables_and_no_solution_is_an_answer(http: httpx.Client) -> None:
    fleet = {"machines": [{"device": "V100-SXM2-16GB", "count": 1, "devices": 1}]}
    answer = http.post("/v1/plan", json=ASKED | {"fleet": fleet, "sizes": "Llama-3.1-405B"})
    told = answer.json()
    assert (answer.status_code, told["outcome"], told["layouts"]) == (200, "no solution", [])
    assert told["no_solution"]["binding"] == "memory"
    assert told["no_solution"]["sentence"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fleet": None}, "name the machines"),
        ({"fleet": "8xH1000"}, "not in the catalogue"),
        ({"fleet": "many"}, "fleet many"),
        ({"fleet": {"machines": []}}, "at least one group"),
        ({"fleet": {"machine": []}}, "machine"),
        ({"sizes": "Llama-9"}, "are not known"),
        ({"sizes": None}, "does not say which model"),
        ({"job": {"trian": {}}}, "unknown key 'trian'"),
        ({"job": {"train": {"tokens": "10Q"}}}, "unknown unit"),
        ({"job": {}}, "how much to train"),
        ({"deadline": "soon"}, "deadline soon"),
        ({"deadline": -5}, "deadline -5"),
        ({"budget": "lots"}, "budget lots"),
        ({"budget": 0}, "more than zero"),
        ({"precision": "float9"}, "precision float9"),
        ({"objective": "fame"}, "objective"),
        ({"more": -1}, "more"),
        ({"fleets": "8xH100"}, "fleets"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_the_words_of_the_body(
    http: httpx.Client, change: dict[str, Any], says: str
) -> None:
    status, code, message = refused(http.post("/v1/plan", json=ASKED | change))
    assert (status, code) == (400, "refused")
    assert says in message
    assert "--" not in message


def test_no_name_is_looked_for_on_the_disk(http: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text("[machines]\npassword = 'tulip'\n")
    for field in ("fleet", "sizes"):
        answer = http.post("/v1/plan", json=ASKED | {field: str(secret)})
        assert answer.status_code == 400
        assert "tulip" not in answer.text
        assert "password" not in answer.text


@pytest.mark.slow
def test_others_are_answered_while_a_plan_is_made_and_one_that_takes_too_long_is_given_up(
    http: httpx.Client, app: FastAPI
) -> None:
    kept, app.state.planners = app.state.planners, Planners(workers=1, max_s=4.0)
    try:
        assert http.post("/v1/plan", json=ASKED).status_code == 200
        (planner,) = app.state.planners._all
        os.kill(planner._process.pid, signal.SIGSTOP)
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(http.post("/v1/plan", json=ASKED)))
        waiting.start()
        assert http.get("/v1/models").json() == {"models": []}
        assert not answers
        waiting.join()
        assert refused(answers[0]) == (400, "refused", "no plan was found within 4 s")
    finally:
        app.state.planners.close()
        app.state.planners = kept


@pytest.mark.slow
def test_a_planner_that_dies_is_replaced(http: httpx.Client, app: FastAPI) -> None:
    kept, app.state.planners = app.state.planners, Planners(workers=1)
    try:
        assert http.post("/v1/plan", json=ASKED).status_code == 200
        (planner,) = app.state.planners._all
        os.kill(planner._process.pid, signal.SIGKILL)
        assert refused(http.post("/v1/plan", json=ASKED))[:2] == (500, "failed")
        assert http.post("/v1/plan", json=ASKED).status_code == 200
    finally:
        app.state.planners.close()
        app.state.planners = kept


@pytest.mark.slow
def test_an_idle_planner_is_ended_and_started_again(http: httpx.Client, app: FastAPI) -> None:
    kept, app.state.planners = app.state.planners, Planners(workers=1, idle_s=0.01)
    try:
        for _ in range(2):
            assert http.post("/v1/plan", json=ASKED).status_code == 200
            (planner,) = app.state.planners._all
            while planner._process is not None:
                time.sleep(0.01)
    finally:
        app.state.planners.close()
        app.state.planners = kept
