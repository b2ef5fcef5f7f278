"""Every route of the gateway with keys of several tenants: data of other tenants do not exist for them.

The routes come from the routers. One that is added without a rule below fails the first test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from fastapi.routing import APIRoute

from windlass.serve.gateway import app
from windlass.serve.gateway.edge.access import Access
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.metrics.series import MAX_SERIES, OTHER
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.bucket import LeaseRequest, rules_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import Name, renew_leases
from windlass.serve.records.state import open_state
from windlass.serve.records.tenants import Tenants
from windlass.spec.limits import Limits
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow

ME = Actor("", "test")
Rule = Literal["open", "use", "metrics", "own", "closed"]
"""own: an administrator of a tenant finds what is that tenant's. closed: only who runs it all."""

RULES: dict[str, Rule] = {
    "/": "open", "/page/{name}": "open", "/errors": "open", "/errors/{code}": "open",
    "/healthz": "open", "/readyz": "open", "/metrics": "metrics",
    "/openapi.json": "use", "/v1/": "use",
    "/admin/keys": "own", "/admin/keys/": "own", "/admin/tenants/": "own", "/admin/limits": "own",
    "/admin/tenants": "closed", "/admin/rollouts": "closed", "/admin/rollouts/": "closed",
    "/admin/replicas": "closed", "/admin/audit": "closed", "/admin/audit/": "closed",
    "/admin/control/": "closed",
}  # fmt: skip


def rule_of(path: str) -> Rule | None:
    below = [door for door in RULES if door.endswith("/") and door != "/" and path.startswith(door)]
    return RULES.get(path) or (RULES[max(below, key=len)] if below else None)


ROUTES = sorted(
    {
        (method, route.path)
        for router in (app.router, *app.ADMIN)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
)


class World:
    """A gateway with two tenants, keys of all kinds, and something of each tenant in its records."""

    def __init__(self, url: str, state: Any) -> None:
        self.url, self.tokens = url, dict[str, str]()
        keys, tenants = ApiKeys(state), Tenants(state)
        for tenant in ("acme", "rival"):
            tenants.make(tenant, ME, limits=Limits(concurrent=4))
            for scope in ("use", "admin", "metrics"):
                self.tokens[f"{tenant} {scope}"] = keys.make(
                    f"{tenant}.{scope}", ME, tenant=tenant, scopes=[scope]
                )[1]
            key = keys.get(f"{tenant}.use")
            for scope_name in (f"tenant:{tenant}", f"key:{key.id}"):
                rule = rules_of(Limits(tokens_per_minute=600))
                renew_leases(
                    state,
                    "g",
                    {Name(scope_name, k): (r, LeaseRequest(0, 1)) for k, r in rule.items()},
                    term_s=9,
                )
        self.tokens["root"] = keys.make("root", ME, scopes=["use", "admin", "metrics"])[1]
        self.ids = {key.name: key.id for key in keys.list()}

    def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=20, **more)


@pytest.fixture(scope="module")
def world(start_shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place: Path = tmp_path_factory.mktemp("matrix")
    state = open_state(sqlite_url(place / "service.db"))
    gateway = start_shared(access=Access(keys=ApiKeys(state)))
    gateway.service.database = state
    yield World(gateway.url, state)
    state.close()


def filled(path: str, name: str) -> str:
    return re.sub(r"{\w+}", name, path)


def test_every_route_has_a_rule() -> None:
    assert [path for _, path in ROUTES if rule_of(path) is None] == []
    assert len(ROUTES) > 40


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_but_what_is_open_answers_without_a_key(world: World, method: str, path: str) -> None:
    status = world.ask("", method, filled(path, "x")).status_code
    assert (status == 401) == (rule_of(path) != "open")


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if rule_of(r[1]) == "closed"])
def test_what_belongs_to_the_installation_is_not_there_for_a_tenant(
    world: World, method: str, path: str
) -> None:
    target = filled(path, "rival")
    answer = world.ask("acme admin", method, target)
    absent = world.ask("acme admin", method, "/admin/nothing")
    assert answer.status_code == absent.status_code == 404
    if method != "HEAD":
        theirs, blank = answer.json()["error"], absent.json()["error"]
        assert theirs["code"] == blank["code"] == "not_found"
    assert world.ask("acme use", method, target).status_code == 403
    assert world.ask("root", method, target).status_code != 403


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if rule_of(r[1]) == "own" and "{" in r[1]])
def test_what_is_anothers_looks_as_if_it_were_not_there(world: World, method: str, path: str) -> None:
    body = {"limits": None} if path.endswith("limits") else {}
    theirs = ["rival", "default"] if "tenants" in path else ["rival.use", world.ids["rival.use"], "root"]
    for name in theirs:
        nobody = "".join("x" if c.isalnum() else c for c in name)
        answers = [world.ask("acme admin", method, filled(path, n), json=body) for n in (name, nobody)]
        assert [answer.status_code for answer in answers] == [404, 404]
        theirs, blank = (
            a.json()["error"]["message"].replace(n, "*") for a, n in zip(answers, (name, nobody), strict=True)
        )
        assert theirs.split(";")[0] == blank.split(";")[0]
        assert "rival" not in theirs
        assert "root" not in theirs


def test_a_tenants_administrator_sees_and_keeps_its_own_keys(world: World) -> None:
    listed = world.ask("acme admin", "GET", "/admin/keys").json()["data"]
    assert {key["tenant"] for key in listed} == {"acme"}
    made = world.ask("acme admin", "POST", "/admin/keys", json={"name": "acme.b", "tenant": "acme"})
    assert made.json()["key"]["tenant"] == "acme"
    assert world.ask("acme admin", "POST", "/admin/keys/acme.b/revoke").status_code == 200
    for body in ({"name": "acme.c"}, {"name": "acme.c", "tenant": "rival"}):
        assert world.ask("acme admin", "POST", "/admin/keys", json=body).status_code == 404
    taken = [{"name": name, "tenant": "acme"} for name in ("rival.use", "nobody.use")]
    answers = [world.ask("acme admin", "POST", "/admin/keys", json=body).json() for body in taken]
    assert len({answer["error"]["message"] for answer in answers}) == 1


def test_a_tenant_sees_its_own_settings_and_budgets_and_changes_neither(world: World) -> None:
    assert world.ask("acme admin", "GET", "/admin/tenants/acme").json()["name"] == "acme"
    for method in ("PATCH", "DELETE"):
        assert world.ask("acme admin", method, "/admin/tenants/acme", json={}).status_code == 403
    own = {budget["scope"] for budget in world.ask("acme admin", "GET", "/admin/limits").json()["data"]}
    assert own == {"tenant:acme", f"key:{world.ids['acme.use']}"}
    assert len(world.ask("root", "GET", "/admin/limits").json()["data"]) > len(own)


def test_figures_are_reported_to_their_tenant_alone(world: World) -> None:
    everything = world.ask("root", "GET", "/metrics").text
    assert "windlass_http_requests_total" in everything
    assert world.ask("acme metrics", "GET", "/metrics").text.strip() == ""
    assert world.ask("acme use", "GET", "/metrics").status_code == 403


def test_tenants_figures_are_apart_and_their_labels_have_an_end() -> None:
    metrics = Metrics(tenants=True)
    for number in range(MAX_SERIES + 50):
        metrics.used(f"t{number}", 1)
    metrics.used("t1", 6)
    assert b'windlass_tenant_tokens_total{tenant="t1"} 7.0' in metrics.text("t1")
    assert metrics.text("t1").count(b"tenant=") == 1
    assert metrics.text(f"t{MAX_SERIES + 1}").count(b"tenant=") == 0
    assert metrics.text().count(b"windlass_tenant_tokens_total{") == MAX_SERIES
    assert metrics.text(OTHER) == b""
