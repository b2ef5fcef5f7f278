"""The control API on a real port: who may, what is refused, and that the command line refuses the same."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from windlass.control.api.app import assignment, build_app
from windlass.control.api.control_keys import ControlKeys
from windlass.http.listener import bind, settings
from windlass.runs.run_settings import request_settings
from windlass.runs.run_status import facts_of, state_of
from windlass.runs.training import RunFolder
from windlass.sdk.jobs import Jobs
from windlass.spec.errors import AskedWrongly, NotFound, WindlassError
from windlass.spec.settings import SETTINGS, TRAIN_KEYS
from windlass.store.lock import locked

Start = Callable[..., RunFolder]
Tell = Callable[..., None]
RUN = "/v1/jobs/poems/1"


class Served:
    """A running control API, and a client of it with a key that may do everything."""

    def __init__(self, url: str, keys: ControlKeys, key: str) -> None:
        self.url, self.keys, self.key = url, keys, key
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30)

    def refused(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        """Return status and code of a refusal, whose shape is always the same."""
        answer = self.http.request(method, path, **more)
        told = answer.json()["error"]
        assert set(told) == {"code", "type", "message", "hint", "request_id"}
        assert answer.headers["x-request-id"] == told["request_id"]
        return answer.status_code, told["code"]


@pytest.fixture(scope="module")
def keys_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def app(keys_home: Path) -> FastAPI:
    return build_app(keys_home)


@pytest.fixture(scope="module")
def url(app: FastAPI) -> Iterator[str]:
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, **settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def served(app: FastAPI, url: str, keys_home: Path, tmp_path: Path) -> Iterator[Served]:
    """One server for all tests; each has runs and a key of its own."""
    app.state.home, keys = tmp_path, ControlKeys(keys_home)
    found = Served(url, keys, keys.make("ada"))
    with found.http:
        yield found
    for key in keys.list():
        keys.drop(key.name)


@contextmanager
def running(folder: RunFolder) -> Iterator[None]:
    with locked(folder.path / ".lock", "the run"):
        yield


def test_only_health_is_reported_without_a_key(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    with httpx.Client(base_url=served.url, timeout=60) as stranger:
        assert stranger.get("/healthz").json() == {"status": "ok"}
        for path, methods in paths.items():
            for method in methods:
                given = path.format(name="poems", number="1", tenant="acme")
                answer = stranger.request(method, given)
                assert answer.status_code == (200 if path == "/healthz" else 401), path
        for path in ("/openapi.json", "/nothing", "/docs"):
            assert stranger.get(path).status_code == 401


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic {key}", "{key}", "Bearer {key}x"])
def test_a_wrong_key_opens_nothing(served: Served, header: str) -> None:
    sent = {"authorization": header.format(key=served.key)}
    assert served.refused("GET", "/v1/jobs", headers=sent) == (401, "unauthorized")


def test_a_key_that_may_read_cannot_change(served: Served, start: Start) -> None:
    folder = start()
    served.http.headers["authorization"] = f"Bearer {served.keys.make('page', scopes=('read',))}"
    assert served.http.get(RUN).json()["run"] == "poems/1"
    for verb in ("set", "scale", "pause", "resume", "stop", "undo"):
        assert served.refused("POST", f"{RUN}/{verb}", json={}) == (403, "forbidden")
    assert not (folder.path / SETTINGS).exists()


def test_a_dropped_key_is_useless_at_once(served: Served) -> None:
    assert served.http.get("/v1/jobs").status_code == 200
    served.keys.drop("ada")
    assert served.refused("GET", "/v1/jobs") == (401, "unauthorized")


def test_only_digests_of_keys_are_kept_and_for_their_owner_alone(served: Served, keys_home: Path) -> None:
    file = keys_home / "control" / "keys.json"
    assert served.key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_page_from_elsewhere_is_refused(served: Served) -> None:
    assert served.refused("GET", "/v1/jobs", headers={"origin": "http://evil.example"}) == (
        403,
        "foreign_origin",
    )
    assert served.refused("GET", "/v1/jobs", headers={"host": "evil.example"}) == (403, "foreign_host")


def test_a_run_is_reported_as_the_command_line_reports_it(served: Served, start: Start, tell: Tell) -> None:
    folder = start()
    tell(folder, event="step", step=30, loss=float("nan"), tokens_per_s=9.0)
    told = served.http.get(RUN).json()
    assert told == json.loads(json.dumps(facts_of(state_of(folder)) | {"loss": None}))
    assert served.http.get("/v1/jobs").json() == {"jobs": [told]}


def test_a_change_carries_the_name_of_the_key(served: Served, start: Start) -> None:
    folder = start()
    body = {"changes": {"train.learning_rate": 1e-4, "sync.policy": "diloco"}}
    answer = served.http.post(f"{RUN}/set", json=body).json()
    assert answer["run"] == "poems/1"
    written = json.loads((folder.path / SETTINGS).read_bytes())
    assert answer["request"] == written
    assert (written["by"], written["learning_rate"], written["sync"]["policy"]) == ("ada", 1e-4, "diloco")


def test_a_run_is_paused_resumed_stopped_and_undone(served: Served, start: Start) -> None:
    folder = start()
    with running(folder), Jobs(served.url, served.key) as jobs:
        assert jobs.pause("poems/1")["paused"]
        assert not jobs.resume("poems")["paused"]
        assert jobs.set("poems", {"train.log_every": 3})["log_every"] == 3
        assert jobs.undo("poems")["log_every"] is None
        assert jobs.stop("poems")["stop"]
        assert [job["run"] for job in jobs.list()] == ["poems/1"]
        assert jobs.show("poems")["requested"]["stop"]


def test_an_elastic_run_is_scaled_and_any_other_is_not(served: Served, start: Start) -> None:
    folder = start()
    with Jobs(served.url, served.key) as jobs:
        with pytest.raises(AskedWrongly, match="is not elastic"):
            jobs.scale("poems", 3)
        (folder.path / "coordinator").mkdir()
        assert jobs.scale("poems", 3) == {"run": "poems/1", "workers": 3}
        with pytest.raises(AskedWrongly, match="workers"):
            jobs.scale("poems", 0)
    asked = json.loads((folder.path / "workers.json").read_bytes())
    assert (asked["workers"], asked["by"]) == (3, "ada")


def test_the_account_of_a_run_is_reported(served: Served, start: Start, tell: Tell) -> None:
    folder = start()
    spent = {"compute": 3.0, "communication": 1.0}
    tell(folder, event="started", time=100.0)
    tell(
        folder, event="ledger", time=104.0, generation=0, steps=[0, 1], samples=[0, 8], digest=0, spent=spent
    )
    lost = {
        "worker": "w2",
        "node": "node0",
        "rank": 1,
        "generation": 1,
        "how": "exit",
        "detail": "",
        "silent_s": 0.0,
    }
    tell(folder, event="lost", time=104.5, **lost)
    with Jobs(served.url, served.key) as jobs:
        assert jobs.goodput("poems")["seconds"]["compute"] == 3.0
        assert "w2" in jobs.incidents("poems")[0]["sentence"]
        found = jobs.audit("poems")
        assert (found["ok"], found["samples_lost"]) == (False, 0), "the digest is not that of these samples"


def test_what_is_refused_is_raised_by_the_sdk_with_its_hint(served: Served, start: Start) -> None:
    start()
    with Jobs(served.url, served.key) as jobs:
        with pytest.raises(AskedWrongly, match="did you mean 'learning_rate'"):
            jobs.set("poems/1", {"train.learning_rat": 1})
        with pytest.raises(NotFound, match="there are: poems/1"):
            jobs.pause("poems/7")
        with pytest.raises(NotFound):
            jobs.show("songs")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"change": {}}', "refused"),
        (b'{"changes": {}}', "refused"),
        (b'{"changes": {"train.log_every": [1]}}', "refused"),
        (b'{"changes": {"train.log_every": null}}', "refused"),
        (b'{"changes": {"train.log_every=2": 3}}', "refused"),
        (b'{"changes": {"train.log_every": 2}, "by": "eve"}', "refused"),
        (b'{"changes": "train.log_every=2"}', "refused"),
        (b"", "refused"),
        (b"\xff", "invalid_json"),
        (b" " * 70_000, "body_too_large"),
    ],
)
def test_a_body_that_is_not_right_is_refused(served: Served, start: Start, body: bytes, code: str) -> None:
    folder = start()
    assert served.refused("POST", f"{RUN}/set", content=body)[1] == code
    assert not (folder.path / SETTINGS).exists()


def test_a_misspelt_field_is_answered_with_the_nearest(served: Served, start: Start) -> None:
    start()
    told = served.http.post(f"{RUN}/set", json={"chnages": {}}).json()["error"]
    assert "unknown key 'chnages' (did you mean 'changes'?)" in told["hint"]


@pytest.mark.parametrize(
    "path", ["/v1/jobs/../1", "/v1/jobs/%2e%2e/1", "/v1/jobs/poems/0", "/v1/jobs/poems/x", "/v1/job"]
)
def test_what_is_not_there_is_not_found(served: Served, start: Start, path: str) -> None:
    start()
    assert served.refused("GET", path)[0] == 404


def test_a_wrong_method_and_a_wrong_query_say_so(served: Served, start: Start) -> None:
    start()
    assert served.refused("PUT", RUN) == (405, "method_not_allowed")
    assert served.refused("GET", f"{RUN}/journal?after=-1") == (400, "refused")


def test_the_journal_is_read_in_parts(served: Served, start: Start, tell: Tell) -> None:
    folder = start()
    for step in range(5):
        tell(folder, event="step", step=step)
    first = served.http.get(f"{RUN}/journal?limit=3").json()
    assert [record["step"] for record in first["records"]] == [0, 1, 2]
    rest = served.http.get(f"{RUN}/journal?after={first['next']}").json()
    assert [record["step"] for record in rest["records"]] == [3, 4]
    with Jobs(served.url, served.key) as jobs:
        assert len(jobs.journal("poems", after=1)) == 4


def test_a_watcher_gets_every_record_until_the_run_ends(served: Served, start: Start, tell: Tell) -> None:
    folder = start()
    tell(folder, event="step", step=1)
    with Jobs(served.url, served.key) as jobs:
        with running(folder):
            watched = jobs.watch("poems/1")
            assert next(watched)["step"] == 1
            tell(folder, event="step", step=2)
            assert next(watched)["step"] == 2
        assert list(watched) == []


def test_a_watcher_that_comes_back_continues_where_it_was(served: Served, start: Start, tell: Tell) -> None:
    folder = start()
    for step in range(3):
        tell(folder, event="step", step=step)
    sent = {"accept": "text/event-stream", "last-event-id": "2"}
    lines = served.http.get(f"{RUN}/journal", headers=sent).text.splitlines()
    assert lines[0] == "id: 3"
    assert json.loads(lines[1].removeprefix("data: "))["step"] == 2
    assert lines[-3:-1] == ["event: end", "data: {}"]


WORDS = st.sampled_from(["fast", "", "nan", "1e-4", "diloco", "local", "none", "true", "-1", "\n", "'", '"'])
VALUES = st.one_of(st.booleans(), st.integers(-5, 300), st.floats(allow_nan=False, width=32), WORDS)
KEYS = st.sampled_from(
    [f"train.{key}" for key in TRAIN_KEYS]
    + [
        "train.batch_sequences",
        "train.rate",
        "sync.policy",
        "sync.every",
        "sync.delay",
        "layout.dp",
        "x",
        "",
        "a.b",
    ]
)


@hypothesis_settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_http_refuses_what_the_command_line_refuses(
    served: Served, start: Start, changes: dict[str, Any]
) -> None:
    folder = start()
    (folder.path / SETTINGS).unlink(missing_ok=True)
    try:
        local = request_settings(folder, [assignment(key, value) for key, value in changes.items()]).values
    except WindlassError as error:
        local = error.message
    (folder.path / SETTINGS).unlink(missing_ok=True)
    answer = served.http.post(f"{RUN}/set", content=json.dumps({"changes": changes}))
    if isinstance(local, str):
        assert answer.status_code == 400
        assert not (folder.path / SETTINGS).exists()
    else:
        asked = answer.json()["request"]
        assert {key: asked[key] for key in local} == local


def test_the_document_describes_every_route_and_its_bodies(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    assert document["paths"][f"{RUN}".replace("poems/1", "{name}/{number}") + "/set"]["post"]["requestBody"]
    assert document["security"] == [{"key": []}]
    assert "SetBody" in document["components"]["schemas"]
    assert "422" not in json.dumps(document)


def test_the_control_api_does_not_load_torch() -> None:
    code = "import sys, windlass.control.api.control_server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
