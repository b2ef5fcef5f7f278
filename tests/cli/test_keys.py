"""`windlass keys`, `tenants` and `audit-log`: what they print, what they refuse, and what they never show."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state, state_url

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path))
    monkeypatch.delenv("WINDLASS_STATE", raising=False)
    return tmp_path


def said(out: Out, *argv: str) -> str:
    assert main([*argv]) == 0
    return out.readouterr().out


def facts(out: Out, *argv: str) -> Any:
    return json.loads(said(out, *argv, "--json"))


def test_a_key_is_printed_once_and_opens(capsys: Out, home: Path) -> None:
    made = facts(capsys, "keys", "make", "ada", "--scope", "metrics", "--expires", "30d")
    found = ApiKeys(open_state(state_url(home))).find(made["key"])
    assert found is not None
    assert (found.name, found.scopes) == ("ada", ("metrics",))
    for argv in (["keys", "list", "--all"], ["keys", "show", "ada"], ["audit-log", "show"]):
        assert made["key"] not in said(capsys, *argv) + said(capsys, *argv, "--json")


def test_a_key_says_whether_it_opens(capsys: Out) -> None:
    facts(capsys, "keys", "make", "ada")
    assert facts(capsys, "keys", "show", "ada")["refused"] is None
    facts(capsys, "keys", "revoke", "ada")
    assert facts(capsys, "keys", "show", "ada")["refused"] == "was revoked"
    assert facts(capsys, "keys", "list") == []
    assert "was revoked" in said(capsys, "keys", "list", "--all")


def test_a_rotated_key_has_another_token(capsys: Out, home: Path) -> None:
    former = facts(capsys, "keys", "make", "ada")["key"]
    other = facts(capsys, "keys", "rotate", "ada", "--grace", "1h")["key"]
    keys = ApiKeys(open_state(state_url(home)))
    assert keys.find(former) == keys.find(other) is not None


def test_limits_are_written_as_in_the_job_file(capsys: Out) -> None:
    argv = ["--limit", "tokens_per_day=1M", "--limit", "requests_per_second=0.5"]
    assert facts(capsys, "tenants", "make", "acme", *argv)["limits"] == {
        "tokens_per_day": 1_000_000,
        "requests_per_second": 0.5,
    }
    facts(capsys, "keys", "make", "ada", "--tenant", "acme", *argv[:2])
    assert facts(capsys, "keys", "limit", "ada", "--no-limits")["limits"] is None


def test_a_tenant_is_suspended_resumed_and_removed(capsys: Out) -> None:
    facts(capsys, "tenants", "make", "acme", "--shared-prefix")
    facts(capsys, "keys", "make", "ada", "--tenant", "acme")
    facts(capsys, "tenants", "set", "acme", "--suspend")
    assert "suspended" in facts(capsys, "keys", "show", "ada")["refused"]
    facts(capsys, "tenants", "set", "acme", "--resume")
    facts(capsys, "keys", "revoke", "ada")
    facts(capsys, "tenants", "remove", "acme")
    assert [tenant["name"] for tenant in facts(capsys, "tenants", "list")] == ["default"]


def test_the_audit_log_has_actors_and_actions_and_detects_a_change(capsys: Out, home: Path) -> None:
    facts(capsys, "keys", "make", "ada")
    head = facts(capsys, "audit-log", "head")["hash"]
    facts(capsys, "keys", "revoke", "ada")
    told = facts(capsys, "audit-log", "show")
    assert [record["action"] for record in told] == ["key.make", "key.revoke"]
    assert all(record["who"].startswith("cli ") for record in told)
    assert facts(capsys, "audit-log", "verify", "--head", head)["ok"]
    with sqlite3.connect(home / "service.db") as file:
        file.execute("UPDATE audit SET who = 'cli nobody' WHERE number = 1")
    assert main(["audit-log", "verify"]) == 1
    assert "record 1 was changed" in capsys.readouterr().out


def test_old_records_are_folded(capsys: Out) -> None:
    facts(capsys, "keys", "make", "ada")
    assert facts(capsys, "audit-log", "fold", "--older-than", "1d") == {"folded": 0}
    assert facts(capsys, "audit-log", "fold", "--older-than", "0s") == {"folded": 1}
    assert facts(capsys, "audit-log", "verify")["first"] == 2


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("keys make Ada", 2, "is not a valid name"),
        ("keys make ada --scope root", 2, "is not a scope"),
        ("keys make ada --tenant defualt", 2, "did you mean 'default'"),
        ("keys make ada --expires soon", 2, "not a duration"),
        ("keys make ada --expires 2001-01-01", 2, "must be in the future"),
        ("keys make ada --limit concurrent", 2, "NAME=VALUE"),
        ("keys make ada --limit concurent=3", 2, "did you mean 'concurrent'"),
        ("keys make ada --limit concurrent=0", 2, "concurrent"),
        ("keys limit ada", 2, "no limits given"),
        ("keys rotate ada", 2, "no key called 'ada'"),
        ("keys revoke ada", 2, "no key called 'ada'"),
        ("tenants set acme", 2, "nothing to change"),
        ("tenants set acme --suspend", 2, "no tenant called 'acme'"),
        ("tenants remove default", 2, "cannot be removed"),
        ("audit-log show --limit 0", 2, "at least 1"),
        ("audit-log fold --older-than soon", 2, "not a duration"),
        ("keys list --state mysql://u:hushhush@h/x", 2, "unknown kind of database"),
        ("keys list --state postgresql://u:hushhush@[h/x", 2, "cannot be read"),
        ("keys list --state postgresql://u:hushhush@127.0.0.1:1/x", 1, "Connection refused"),
        ("keys list --state sqlite:///", 2, "names no file"),
    ],
)
def test_what_cannot_be_is_said_without_any_password(capsys: Out, line: str, code: int, reason: str) -> None:
    if "postgresql:" in line:
        pytest.importorskip("psycopg", reason="psycopg (the extra `postgres`) is not installed")
    assert main(line.split()) == code
    told = capsys.readouterr()
    assert reason in told.err
    assert "hushhush" not in told.err + told.out
