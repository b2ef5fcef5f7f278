"""Every route of the control API by whose key: what is another tenant's is not there.

The routes come from the routers. One that is added without a rule below fails the first test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from fastapi.routing import APIRoute

from tests.control.plane.world import World as Cluster
from tests.control.plane.world import WorldBackend, in_order
from windlass.cluster.backend import Group
from windlass.control.api.app import ROUTERS, build_app
from windlass.control.api.control_keys import ControlKeys
from windlass.control.api.queue import redacted
from windlass.control.plane.control_plane import ControlPlane, ControlPlaneConfig
from windlass.control.plane.job_store import plane_url
from windlass.control.plane.job_to_group import groups_for
from windlass.control.tenants.rate_limiter import AT_ONCE, BURST, TenantRateLimiter
from windlass.control.tenants.tenant_registry import TenantRegistry
from windlass.http.listener import bind, settings
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job
from windlass.spec.run import RUN_FILE
from windlass.spec.tenancy import Allowance, TenantResourceQuota

Rule = Literal["open", "own", "list", "share", "closed"]
"""own: one thing, of one's own or not there. list: of one's own. closed: only who runs the installation."""

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): "open",
    ("GET", "/v1/jobs"): "list",
    ("GET", "/v1/models"): "list",
    ("GET", "/v1/queue"): "list",
    ("POST", "/v1/queue"): "list",
    ("GET", "/v1/shares"): "list",
    ("GET", "/v1/plane"): "list",
    ("PUT", "/v1/shares/{tenant}"): "share",
    ("POST", "/v1/plan"): "closed",
    ("GET", "/v1/plan/choices"): "closed",
}
BELOW: dict[str, Rule] = {
    "/v1/jobs/{name}/{number}": "own",
    "/v1/models/{name}": "own",
    "/v1/queue/{name}": "own",
}
BODIES: dict[str, dict[str, Any]] = {
    "set": {"changes": {"train.learning_rate": 0.1}},
    "scale": {"workers": 2},
    "promote": {"version": 1},
    "priority": {"priority": 0},
    "/v1/shares/{tenant}": {"weight": 2.0},
}
ROUTES = sorted(
    {(m, r.path) for each in ROUTERS for r in each.routes if isinstance(r, APIRoute) for m in r.methods}
)
JOB = 'name = "{name}"\n[corpus]\nsources = ["python:stdlib"]\n[cluster]\ncores = 1\nmemory = "1MiB"\n'
SMALL = {"layers": 2, "width": 64}
CORPUS = CorpusFacts("corpus", "digest", 512, 1_000_000, 100_000)
MACHINE = MachineFacts(2, 8 << 30, 1e11, False)
UIDS = range(291_400, 291_410) if os.geteuid() == 0 else None


def rule_of(method: str, path: str) -> Rule | None:
    below = next((rule for door, rule in BELOW.items() if path == door or path.startswith(f"{door}/")), None)
    return RULES.get((method, path)) or below


class World:
    """A control API with two tenants, each with a queued job, a run and a model called alike."""

    def __init__(self, home: Path) -> None:
        self.home, self.url, self.tokens = home, "", dict[str, str]()
        self.registry = TenantRegistry(home, users=UIDS)
        self.plane = ControlPlane(
            ControlPlaneConfig(
                home=home,
                state=plane_url(home),
                backend_name="made up",
                connect=lambda: WorldBackend(Cluster()),
                group_of=groups_for(home, "local"),
                decide=in_order,
                tenants=self.registry,
                reconcile=False,
            )
        )
        keys = ControlKeys(home)
        for tenant in ("acme", "rival"):
            self.tokens[tenant] = keys.make(tenant, tenant=tenant)
            self.registry.allow(tenant, lambda _: Allowance(quota=TenantResourceQuota(waiting=3)), "test")
            self._settle(tenant)
        self.tokens["root"] = keys.make("root")

    def _settle(self, tenant: str) -> None:
        """Give a tenant a run and a model, named so that a guess would hit."""
        home = self.registry.context(tenant).home
        run = home / "runs" / f"{tenant}-run" / "1"
        run.mkdir(parents=True)
        job = Job.model_validate({"name": f"{tenant}-run", "train": {"steps": 4}, "model": SMALL})
        (run / RUN_FILE).write_text(plan_run(job, CORPUS, MACHINE).model_dump_json())
        (run / "journal.jsonl").write_text(json.dumps({"event": "secret of", "whose": tenant}) + "\n")
        (home / "models" / f"{tenant}-model").mkdir(parents=True)
        self.hand_over(tenant)

    def hand_over(self, tenant: str) -> None:
        context = self.registry.context(tenant)
        if context.uid is not None:
            for path in (context.home, *context.home.rglob("*")):
                os.chown(path, context.uid, context.uid, follow_symlinks=False)
        context.home.chmod(0o700)

    def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=20, **more)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    home = Path(tempfile.mkdtemp(prefix="tenants-matrix-"))
    home.chmod(0o711)
    found = World(home)
    app = build_app(home, plane=found.plane)
    listener = bind("127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, **settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    for tenant in ("acme", "rival"):
        body = {"job": JOB.format(name=f"{tenant}-job")}
        assert found.ask(tenant, "POST", "/v1/queue", json=body).status_code == 201
    yield found
    server.should_exit = True
    thread.join()
    shutil.rmtree(home)


def filled(path: str, whose: str) -> str:
    kind = path.split("/")[2]
    name = (
        whose
        if "{tenant}" in path
        else f"{whose}-{ {'jobs': 'run', 'models': 'model', 'queue': 'job'}[kind] }"
    )
    return path.replace("{name}", name).replace("{number}", "1").replace("{tenant}", name)


def body_of(path: str) -> dict[str, Any]:
    return BODIES.get(path.rpartition("/")[2], BODIES.get(path, {}))


def test_every_route_has_a_rule() -> None:
    assert [route for route in ROUTES if rule_of(*route) is None] == []
    assert len(ROUTES) > 25


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_answers_without_a_key_but_what_is_open(world: World, method: str, path: str) -> None:
    asked = filled(path, "acme") if "{" in path else path
    found = world.ask("", method, asked).status_code
    assert found == (200 if rule_of(method, path) == "open" else 401)


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if rule_of(*r) == "closed"])
def test_what_is_the_installations_is_not_there_for_a_tenant(world: World, method: str, path: str) -> None:
    answer = world.ask("acme", method, path, json={})
    assert answer.status_code == 404
    assert world.ask("root", method, path, json={}).status_code != 404


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if rule_of(*r) in ("own", "share")])
def test_what_is_anothers_looks_as_if_it_were_not_there(world: World, method: str, path: str) -> None:
    answers = [
        world.ask("acme", method, filled(path, whose), **({} if method == "GET" else {"json": body_of(path)}))
        for whose in ("rival", "nobod")
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    told, blank = (
        re.sub(r"rival|nobod", "*", json.dumps({**a.json()["error"], "request_id": ""})) for a in answers
    )
    assert told == blank


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if rule_of(*r) == "list"])
def test_lists_hold_ones_own(world: World, method: str, path: str) -> None:
    if method == "GET":
        for tenant, other in (("acme", "rival"), ("rival", "acme")):
            answer = world.ask(tenant, method, path)
            assert answer.status_code == 200
            assert other not in answer.text
    theirs = world.ask("acme", "GET", "/v1/queue?tenant=rival")
    assert theirs.status_code == 404


def test_ones_own_is_seen_and_the_owner_of_all_sees_all(world: World) -> None:
    assert world.ask("acme", "GET", "/v1/queue/acme-job").json()["tenant"] == "acme"
    assert world.ask("acme", "GET", "/v1/queue/acme-job/events").json()["events"]
    assert world.ask("acme", "GET", "/v1/jobs/acme-run/1/journal").json()["records"][0]["whose"] == "acme"
    names = {job["name"] for job in world.ask("root", "GET", "/v1/queue").json()["jobs"]}
    assert {"acme-job", "rival-job"} <= names
    assert world.ask("acme", "PUT", "/v1/shares/acme", json={"weight": 9.0}).status_code == 403
    uid = next(
        j["uid"] for j in world.ask("root", "GET", "/v1/queue").json()["jobs"] if j["tenant"] == "rival"
    )
    assert world.ask("acme", "GET", f"/v1/queue/{uid}").status_code == 404


def test_a_link_to_anothers_run_leads_nowhere(world: World) -> None:
    own, theirs = (world.registry.context(tenant).home / "runs" for tenant in ("acme", "rival"))
    (own / "leak").mkdir()
    (own / "leak" / "1").symlink_to(theirs / "rival-run" / "1")
    (own / "mixed" / "1").mkdir(parents=True)
    (own / "mixed" / "1" / "run.json").write_text("{}")
    (own / "mixed" / "1" / "journal.jsonl").symlink_to(theirs / "rival-run" / "1" / "journal.jsonl")
    os.mkfifo(own / "acme-run" / "1" / "pipe.jsonl")
    world.hand_over("acme")
    try:
        for name in ("leak", "mixed", "acme-run"):
            answer = world.ask("acme", "GET", f"/v1/jobs/{name}/1/journal")
            assert answer.status_code in (404, 500), answer.text
            assert "secret" not in answer.text
    finally:
        for name in ("leak", "mixed"):
            shutil.rmtree(own / name)
        (own / "acme-run" / "1" / "pipe.jsonl").unlink()


def test_what_a_process_noted_of_its_run_is_not_believed(world: World) -> None:
    home, theirs = (world.registry.context(tenant).home for tenant in ("acme", "rival"))
    group = world.ask("acme", "GET", "/v1/queue/acme-job").json()["group"]
    note = home / "launches" / group / "run.json"
    note.parent.mkdir(parents=True)
    for lie in (json.dumps(str(theirs / "runs" / "rival-run" / "1")), "[1]", "{", "x" * 9000):
        note.write_text(lie)
        world.hand_over("acme")
        answer = world.ask("acme", "GET", "/v1/queue/acme-job/journal")
        assert "secret" not in answer.text
    note.write_text(json.dumps(str(home / "runs" / "acme-run" / "1")))
    world.hand_over("acme")
    told = world.ask("acme", "GET", "/v1/queue/acme-job/journal").json()["records"]
    assert told[0]["whose"] == "acme"


def test_a_tenants_part_of_the_queue_has_an_end(world: World) -> None:
    statuses = [
        world.ask("rival", "POST", "/v1/queue", json={"job": JOB.format(name=f"r{n}")}).status_code
        for n in range(4)
    ]
    assert statuses == [201, 201, 429, 429]
    body = {"job": JOB.format(name="acme-2")}
    assert world.ask("acme", "POST", "/v1/queue", json=body).status_code == 201


@pytest.mark.parametrize(
    "change",
    [
        {"job": JOB.format(name="x").replace("python:stdlib", "../rival/data")},
        {"job": JOB.format(name="x") + "priority = 5\n"},
        {"job": JOB.format(name="x"), "priority": 5},
        {"service": {"model": "../rival/models/m"}},
        {"service": {"model": "m", "host": "0.0.0.0"}},
        {"service": {"model": "m", "cluster": {"env": {"WINDLASS_STATE": "x"}}}},
        {"job": JOB.format(name="x"), "tenant": "rival"},
    ],
)
def test_jobs_that_name_what_is_not_their_tenants_are_refused(world: World, change: dict[str, Any]) -> None:
    assert world.ask("acme", "POST", "/v1/queue", json=change).status_code in (400, 404)


def test_a_request_that_one_tenant_repeats_is_not_anothers(world: World) -> None:
    """Both give the same Idempotency-Key: each gets a job of its own, and only its own again."""
    world.registry.allow("rival", lambda _: Allowance(quota=TenantResourceQuota(waiting=50)), "test")
    world.registry.allow("acme", lambda _: Allowance(quota=TenantResourceQuota(waiting=50)), "test")
    uids = []
    for tenant in ("acme", "rival", "acme"):
        headers = {"authorization": f"Bearer {world.tokens[tenant]}", "idempotency-key": "the-same"}
        body = {"job": JOB.format(name="again")}
        answer = httpx.post(f"{world.url}/v1/queue", json=body, headers=headers, timeout=20)
        uids.append((answer.status_code, answer.json()["uid"]))
    assert [status for status, _ in uids] == [201, 201, 200]
    assert uids[0][1] == uids[2][1] != uids[1][1]


def test_reasons_name_no_job_of_another_tenant() -> None:
    said = "the room is reserved for rival/secret.1 and acme/own, first in line: /srv/logs/rival/x.log"
    assert redacted(said, "acme") == (
        "the room is reserved for a job of another tenant and acme/own, first in line: /srv/logs/rival/x.log"
    )
    assert redacted(said, None) == said


def test_a_suspended_tenant_submits_nothing(world: World) -> None:
    from windlass.serve.records.audit_log import Actor

    world.registry.tenants.set("acme", Actor("", "test"), suspended=True)
    try:
        assert world.ask("acme", "POST", "/v1/queue", json={"job": JOB.format(name="y")}).status_code == 403
    finally:
        world.registry.tenants.set("acme", Actor("", "test"), suspended=False)


def test_one_tenant_takes_no_more_than_its_turns() -> None:
    gate = TenantRateLimiter()
    let_in = sum(gate.refusal("hostile", 0.0) is None for _ in range(1000))
    assert let_in == BURST
    assert gate.refusal("other", 0.0) is None
    assert gate.refusal("hostile", 1.0) is None
    with ExitStack() as inside:
        for _ in range(AT_ONCE):
            inside.enter_context(gate.counted("busy"))
        assert "in progress" in (gate.refusal("busy", 0.0) or "")
    assert gate.refusal("busy", 0.0) is None


def test_groups_of_tenants_are_walled_in_and_the_owners_are_not(world: World) -> None:
    def group_of(tenant: str) -> Group:
        return Group("g", "m", tenant=tenant)

    isolated = world.registry.isolated(group_of, lambda tenant: tenant, "local")
    assert isolated("default").isolation is None
    isolation = isolated("acme").isolation
    assert isolation is not None
    assert isolation.home == str(world.home / "tenants" / "acme")
    assert isolation.uid == (None if UIDS is None else UIDS[0])
