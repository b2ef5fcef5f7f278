"""`windlass rollout`, where no service runs: wishes, refusals and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.registry.versions import Registry
from windlass.serve.records.rollouts import Rollouts
from windlass.serve.records.state import open_state
from windlass.store.database import sqlite_url
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with base@1 and base@2."""
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path))
    monkeypatch.delenv("WINDLASS_STATE", raising=False)
    writer = DirectoryWriter(StoreDir(tmp_path / "source"))
    writer.write("config.json", b"{}")
    writer.commit({"kind": "model"})
    for _ in range(2):
        Registry(tmp_path).register("base", tmp_path / "source")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main(["rollout", *command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["rollout", *command]) == 2
    return capsys.readouterr().err


def test_a_roll_out_waits_for_a_service_and_can_be_aborted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = told(capsys, "start", "base@2")
    assert (started["candidate"], started["kind"], started["state"]) == ("base@2", "canary", "waiting")
    assert main(["rollout", "status", "base"]) == 0
    assert "no service has started it yet" in capsys.readouterr().out
    assert told(capsys, "abort", started["id"])["state"] == "aborted"
    assert [each["id"] for each in told(capsys, "history", "base")] == [started["id"]]


@pytest.mark.parametrize(
    ("options", "kind", "policy"),
    [
        (["--stages", "0.1,1", "--requests", "5"], "canary", {"stages": (0.1, 1.0), "requests": 5}),
        (["--blue-green", "--no-gate"], "blue_green", {"gate": False}),
        (["--weight", "0.3"], "weights", {"stages": (0.3,)}),
        (["--shadow", "0.5", "--seconds", "2min"], "shadow", {"shadow": 0.5, "seconds": 120.0}),
    ],
)
def test_options_become_a_policy(
    home: Path, capsys: pytest.CaptureFixture[str], options: list[str], kind: str, policy: dict[str, object]
) -> None:
    told(capsys, "start", "base@2", *options)
    database = open_state(sqlite_url(home / "service.db"))
    record = Rollouts(database).find("base")
    database.close()
    assert record.kind == kind
    assert {name: getattr(record.policy, name) for name in policy} == policy


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["start", "base"], "names no version"),
        (["start", "base@7"], "no version 7"),
        (["start", "base@2", "--stages", "0.5,0.1"], "must rise"),
        (["start", "base@2", "--stages", "half"], "is not a number"),
        (["start", "base@2", "--weight", "7"], "less than or equal to 1"),
        (["start", "base@2", "--seconds", "soon"], "--seconds soon"),
        (["start", "base@2", "--held-out", "/nowhere"], "cannot be read"),
        (["start", "base@2", "--weight", "0.1", "--shadow", "0.1"], "not allowed"),
        (["status", "nothing"], "no roll-out 'nothing'"),
        (["promote", "nothing"], "no roll-out 'nothing'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    assert said in refused(capsys, *command)


def test_a_second_roll_out_of_a_name_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "start", "base@2")
    assert "is under way" in refused(capsys, "start", "base@1")
