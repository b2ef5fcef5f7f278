"""The records over HTTP: keys, tenants, roll-outs, replicas; every change is in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.bucket import LeaseRequest, rules_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import Name, renew_leases
from windlass.serve.records.state import open_state
from windlass.spec.limits import Limits
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(start_gateway: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    state = open_state(sqlite_url(tmp_path / "service.db"))
    keys = ApiKeys(state)
    token = keys.make("root", Actor("", "test"), scopes=["admin", "use"])[1]
    gateway = start_gateway(access=Access(keys=keys))
    gateway.service.database = state
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=gateway.url, timeout=20, headers=headers) as client:
        yield client


def code_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def test_a_key_that_is_made_opens_until_it_is_revoked(admin: httpx.Client) -> None:
    made = admin.post("/admin/keys", json={"name": "ada", "limits": {"concurrent": 2}})
    assert made.headers["cache-control"] == "no-store"
    bearer = {"authorization": f"Bearer {made.json()['token']}"}
    assert admin.get("/v1/models", headers=bearer).status_code == 200
    assert admin.get("/admin/keys", headers=bearer).status_code == 403
    assert admin.post("/admin/keys/ada/revoke").json()["refused"] == "was revoked"
    assert admin.get("/v1/models", headers=bearer).status_code == 401


def test_a_rotated_key_has_another_token(admin: httpx.Client) -> None:
    first = admin.post("/admin/keys", json={"name": "ada"}).json()["token"]
    second = admin.post("/admin/keys/ada/rotate", json={}).json()["token"]
    statuses = [
        admin.get("/v1/models", headers={"authorization": f"Bearer {token}"}).status_code
        for token in (first, second)
    ]
    assert statuses == [401, 200]


def test_limits_and_life_of_a_key_are_shown(admin: httpx.Client) -> None:
    admin.post("/admin/keys", json={"name": "ada", "expires_in_s": 60})
    limited = admin.put("/admin/keys/ada/limits", json={"limits": {"requests_per_second": 5}}).json()
    assert limited["limits"] == {"requests_per_second": 5.0}
    shown = admin.get("/admin/keys/ada").json()
    assert shown == limited
    assert shown["expires_s"] > shown["made_s"]
    assert shown in admin.get("/admin/keys").json()["data"]
    assert "token" not in shown


def test_a_tenant_is_made_changed_suspended_and_removed(admin: httpx.Client) -> None:
    assert admin.post("/admin/tenants", json={"name": "acme"}).status_code == 200
    token = admin.post("/admin/keys", json={"name": "app", "tenant": "acme"}).json()["token"]
    bearer = {"authorization": f"Bearer {token}"}
    changed = admin.patch("/admin/tenants/acme", json={"limits": {"queue": 3}, "suspended": True}).json()
    assert changed["limits"] == {"queue": 3}
    assert admin.get("/v1/models", headers=bearer).status_code == 401
    assert code_of(admin.delete("/admin/tenants/acme")) == "conflict"
    admin.post("/admin/keys/app/revoke")
    assert admin.delete("/admin/tenants/acme").json() == {"object": "done"}
    assert code_of(admin.get("/admin/tenants/acme")) == "not_found"
    assert [tenant["name"] for tenant in admin.get("/admin/tenants").json()["data"]] == ["default"]


def test_a_rollout_is_wished_for_and_aborted(admin: httpx.Client) -> None:
    started = admin.post("/admin/rollouts", json={"candidate": "tiny@4"}).json()
    assert (started["state"], started["candidate"]) == ("waiting", "tiny@4")
    assert code_of(admin.post("/admin/rollouts", json={"candidate": "tiny@5"})) == "conflict"
    assert admin.post(f"/admin/rollouts/{started['id']}/abort").json()["state"] == "aborted"
    assert code_of(admin.post("/admin/rollouts/tiny/promote")) == "invalid_value"
    assert admin.get("/admin/rollouts/tiny").json() == admin.get("/admin/rollouts").json()["data"][0]


def test_budgets_that_were_counted_are_shown(admin: httpx.Client, tmp_path: Path) -> None:
    assert admin.get("/admin/limits").json() == {"object": "list", "data": []}
    state = open_state(sqlite_url(tmp_path / "service.db"))
    name, rule = Name("tenant:default", "tokens_day"), rules_of(Limits(tokens_per_day=100))["tokens_day"]
    renew_leases(state, "gateway", {name: (rule, LeaseRequest(want=40))}, term_s=60)
    reply = admin.get("/admin/limits").json()["data"]
    assert [(each["scope"], each["capacity"], each["gateways"]) for each in reply] == [
        ("tenant:default", 100, 1)
    ]
    assert reply[0]["left"] + reply[0]["lent"] == 100


def test_replicas_are_shown_as_they_are_routed(admin: httpx.Client) -> None:
    reply = admin.get("/admin/replicas").json()
    assert [replica["models"] for replica in reply["data"]] == [["tiny@3"]]
    assert reply["routes"]["tiny"]["weights"] == {"tiny@3": 1.0}


def test_every_change_is_in_the_audit_log_and_no_token_is(admin: httpx.Client) -> None:
    tokens = [admin.post("/admin/keys", json={"name": name}).json()["token"] for name in ("ada", "bob")]
    admin.post("/admin/tenants", json={"name": "acme"})
    admin.post("/admin/keys/ada/revoke")
    admin.post("/admin/rollouts", json={"candidate": "tiny@4"})
    log = admin.get("/admin/audit?limit=500")
    actions = [record["action"] for record in log.json()["data"]]
    assert actions == ["key.make", "key.make", "key.make", "tenant.make", "key.revoke", "rollout.start"]
    assert {record["who"] for record in log.json()["data"][1:]} == {"root"}
    assert {record["address"] for record in log.json()["data"][1:]} == {"127.0.0.1"}
    assert not any(token in log.text for token in tokens)
    assert len(admin.get("/admin/audit?after=2&limit=2").json()["data"]) == 2
    assert admin.get("/admin/audit/verify").json()["ok"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/admin/keys", {"name": "Ada Lovelace"}, "invalid_value"),
        ("POST", "/admin/keys", {"name": "root"}, "conflict"),
        ("POST", "/admin/keys", {"name": "a", "tenant": "none"}, "not_found"),
        ("POST", "/admin/keys", {"name": "a", "scopes": ["root"]}, "invalid_value"),
        ("POST", "/admin/keys", {"name": "a", "expires_in_s": 0}, "invalid_value"),
        ("POST", "/admin/keys", {"name": "a", "limits": {"rps": 1}}, "unknown_parameter"),
        ("POST", "/admin/keys", {"name": "a", "token": "mine"}, "unknown_parameter"),
        ("PUT", "/admin/keys/root/limits", {}, "missing_parameter"),
        ("GET", "/admin/keys/nobody", None, "not_found"),
        ("POST", "/admin/keys/nobody/revoke", None, "not_found"),
        ("POST", "/admin/tenants", {"name": "default"}, "conflict"),
        ("DELETE", "/admin/tenants/default", None, "invalid_value"),
        ("POST", "/admin/rollouts", {"candidate": "tiny"}, "invalid_value"),
        ("POST", "/admin/rollouts", {"candidate": "tiny@4", "held_out": "/etc/passwd"}, "unknown_parameter"),
        ("POST", "/admin/rollouts/ro-0/abort", None, "not_found"),
        ("GET", "/admin/audit?limit=0", None, "invalid_value"),
        ("GET", "/admin/audit?limit=x", None, "invalid_value"),
        ("GET", "/admin/audit?after=1&after=2", None, "invalid_value"),
        ("GET", "/admin/audit?count=2", None, "unknown_parameter"),
        ("GET", "/admin/nothing", None, "not_found"),
        ("DELETE", "/admin/keys", None, "method_not_allowed"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    admin: httpx.Client, method: str, path: str, body: dict[str, Any] | None, code: str
) -> None:
    before = admin.get("/admin/audit").json()
    assert code_of(admin.request(method, path, json=body)) == code
    assert admin.get("/admin/audit").json() == before


def test_a_gateway_without_state_keeps_no_records(http: httpx.Client) -> None:
    assert code_of(http.get("/admin/keys")) == "not_found"
