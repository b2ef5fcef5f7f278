"""Keys open what they may, for as long as they may, in every process at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from windlass.serve.records.audit_log import Actor, newest_records
from windlass.serve.records.keys import SCOPES, ApiKeys, ensure_first_key
from windlass.serve.records.state import open_state
from windlass.serve.records.tenants import Tenants
from windlass.spec.errors import AskedWrongly, BadInput, Damaged, InUse, NotFound
from windlass.spec.limits import Limits
from windlass.store.database import Database

Clock = Callable[[], float]


@pytest.fixture
def keys(state: Database, clock: Clock) -> ApiKeys:
    return ApiKeys(state, clock=clock)


def seen_soon(look: Callable[[], bool]) -> bool:
    """Give a message between processes the time that it takes; there is none to wait for in SQLite."""
    until = time.monotonic() + 60
    while not look() and time.monotonic() < until:
        time.sleep(0.005)
    return look()


def test_a_key_is_found_by_its_token_alone(keys: ApiKeys, me: Actor) -> None:
    key, token = keys.make("ada", me, scopes=["metrics", "use"], limits=Limits(concurrent=3))
    assert keys.find(token) == key
    assert keys.by_id(key.id) == key
    assert (key.scopes, key.tenant, key.limits) == (("use", "metrics"), "default", Limits(concurrent=3))
    for wrong in (
        token[:-1],
        token + "A",
        token.upper(),
        "",
        "wlk_",
        "\ud800",
        key.id,
        "' OR 1=1 --",
        "\x00",
        token + "\x00",
    ):
        assert keys.find(wrong) is None


def test_no_table_holds_a_token(keys: ApiKeys, state: Database, me: Actor) -> None:
    tokens = [keys.make("ada", me)[1], keys.rotate("ada", me, grace_s=60)[1]]
    tables = ("keys", "audit", "tenants")
    kept = repr([state.read(f"SELECT * FROM {table}") for table in tables])
    assert all(token.removeprefix("wlk_") not in kept for token in tokens)


def test_a_key_expires(keys: ApiKeys, clock: Clock, me: Actor) -> None:
    key, token = keys.make("brief", me, expires_s=clock() + 60)
    clock.now_s += 59.9  # type: ignore[attr-defined]
    assert keys.find(token) == key
    clock.now_s += 0.1  # type: ignore[attr-defined]
    assert keys.find(token) is None
    assert key.refusal(clock()) == "has expired"


def test_a_revoked_key_is_dead_at_once_and_frees_its_name(keys: ApiKeys, me: Actor) -> None:
    old, token = keys.make("ada", me)
    assert keys.find(token) == old
    keys.revoke("ada", me)
    assert keys.find(token) is None
    assert keys.at_hand(token) is None
    new, other = keys.make("ada", me)
    assert keys.find(other) == new == keys.get("ada")
    assert keys.get(old.id).revoked_s is not None
    with pytest.raises(NotFound, match="was revoked before"):
        keys.revoke(old.id, me)


def test_a_rotated_key_keeps_its_id_and_the_former_token_its_grace(
    keys: ApiKeys, clock: Clock, me: Actor
) -> None:
    key, former = keys.make("ada", me)
    same, token = keys.rotate("ada", me, grace_s=30)
    assert (same.id, keys.find(token), keys.find(former)) == (key.id, same, same)
    clock.now_s += 30  # type: ignore[attr-defined]
    assert (keys.find(token), keys.find(former)) == (same, None)
    keys.revoke("ada", me)
    assert keys.find(token) is None


def test_the_former_token_of_a_revoked_key_is_dead_too(keys: ApiKeys, me: Actor) -> None:
    _, former = keys.make("ada", me)
    keys.rotate("ada", me, grace_s=30)
    keys.revoke("ada", me)
    assert keys.find(former) is None


def test_keys_of_a_suspended_tenant_do_not_open(keys: ApiKeys, state: Database, me: Actor) -> None:
    tenants = Tenants(state)
    tenants.make("acme", me)
    key, token = keys.make("ada", me, tenant="acme")
    tenants.set("acme", me, suspended=True)
    assert keys.find(token) is None
    tenants.set("acme", me, suspended=False)
    assert keys.find(token) == key


def test_another_gateway_sees_at_once_what_this_one_changed(
    keys: ApiKeys, state_url: str, clock: Clock, me: Actor
) -> None:
    other = open_state(state_url)
    elsewhere = ApiKeys(other, clock=clock)
    _, token = keys.make("ada", me)
    assert elsewhere.find(token) is not None
    assert seen_soon(lambda: elsewhere.at_hand(token) is not None or elsewhere.find(token) is None)
    keys.revoke("ada", me)
    assert seen_soon(lambda: elsewhere.find(token) is None)
    other.close()


def test_a_command_in_another_process_revokes(keys: ApiKeys, state_url: str, me: Actor) -> None:
    _, token = keys.make("ada", me)
    assert keys.find(token) is not None
    program = (
        "import sys; from windlass.serve.records.audit_log import Actor;"
        "from windlass.serve.records.keys import ApiKeys;"
        "from windlass.serve.records.state import open_state;"
        "ApiKeys(open_state(sys.argv[1])).revoke('ada', Actor('', 'another'))"
    )
    subprocess.run([sys.executable, "-c", program, state_url], check=True, timeout=60)
    assert seen_soon(lambda: keys.find(token) is None)


def test_the_first_start_makes_one_admin_key(state: Database) -> None:
    token = ensure_first_key(state)
    assert token is not None
    found = ApiKeys(state).find(token)
    assert found is not None
    assert found.scopes == SCOPES
    assert ensure_first_key(state) is None


def test_no_key_is_made_by_itself_after_the_last_was_revoked(state: Database, me: Actor) -> None:
    ensure_first_key(state)
    ApiKeys(state).revoke("admin", me)
    assert ensure_first_key(state) is None


@pytest.mark.parametrize(
    ("name", "asked", "error", "reason"),
    [
        ("No Name", {}, BadInput, "is not a valid name"),
        ("a" * 64, {}, BadInput, "is not a valid name"),
        ("", {}, BadInput, "is not a valid name"),
        ("taken", {}, InUse, "exists already"),
        ("b", {"tenant": "defualt"}, NotFound, "did you mean 'default'"),
        ("b", {"scopes": ["admn"]}, BadInput, "did you mean 'admin'"),
        ("b", {"scopes": []}, BadInput, "needs a scope"),
        ("b", {"expires_s": float("inf")}, BadInput, "within 100 years"),
        ("b", {"expires_s": float("nan")}, BadInput, "within 100 years"),
        ("b", {"expires_s": 5.0}, BadInput, "must be in the future"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    keys: ApiKeys,
    state: Database,
    me: Actor,
    name: str,
    asked: dict[str, object],
    error: type[AskedWrongly],
    reason: str,
) -> None:
    keys.make("taken", me)
    with pytest.raises(error, match=reason):
        keys.make(name, me, **asked)  # type: ignore[arg-type]
    assert [key.name for key in keys.list()] == ["taken"]
    assert len(newest_records(state, 10)) == 1


def test_limits_of_a_key_can_be_changed_and_lifted(keys: ApiKeys, me: Actor) -> None:
    keys.make("ada", me)
    assert keys.limit("ada", Limits(tokens_per_day=5), me).limits == Limits(tokens_per_day=5)
    assert keys.limit("ada", None, me).limits is None


def test_every_change_is_written_down(keys: ApiKeys, state: Database, me: Actor) -> None:
    key, _ = keys.make("ada", me)
    keys.limit("ada", Limits(concurrent=1), me)
    keys.rotate("ada", me)
    keys.revoke("ada", me)
    told = newest_records(state, 10)
    assert [record.action for record in told] == ["key.make", "key.limit", "key.rotate", "key.revoke"]
    assert {(record.target, record.who, record.address) for record in told} == {
        (f"ada ({key.id})", "cli tester", "127.0.0.1")
    }


def test_a_foreign_row_gives_no_access(keys: ApiKeys, state: Database, me: Actor) -> None:
    _, token = keys.make("ada", me)
    state.write("UPDATE keys SET scopes = 'root,use'")
    found = keys.find(token)
    assert found is not None
    assert found.scopes == ("use",)
    state.write("UPDATE keys SET limits = '{'")
    with pytest.raises(Damaged, match="of key 'ada' cannot be read"):
        keys.find(token)
