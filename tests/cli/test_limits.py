"""`windlass limits`, on a real state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.serve.records.bucket import LeaseRequest, Rule
from windlass.serve.records.quotas import ALL, Name, renew_leases
from windlass.serve.records.state import open_state, state_url


def run(capsys: pytest.CaptureFixture[str], home: Path, *args: str) -> Any:
    assert main(["limits", *args, "--home", str(home), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_limits_that_are_set_are_shown_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, tmp_path, "set", "tenant", "default", "--limit", "tokens_per_day=5M")
    (row,) = run(capsys, tmp_path, "show")
    assert row == {
        "whose": "tenant default",
        "limit": "tokens_day",
        "capacity": 5_000_000,
        "left": 5_000_000,
        "held": 0,
        "gateways": 0,
    }


def test_limits_that_are_lifted_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, tmp_path, "set", "tenant", "default", "--limit", "concurrent=4")
    assert run(capsys, tmp_path, "set", "tenant", "default", "--no-limits")["limits"] is None
    assert run(capsys, tmp_path, "show") == []


def test_what_gateways_hold_of_everybodys_limits_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = open_state(state_url(tmp_path))
    order = {Name(ALL, "concurrent"): (Rule("permits", 8), LeaseRequest(need=3))}
    renew_leases(state, "a gateway", order, term_s=600.0)
    state.close()
    (row,) = run(capsys, tmp_path, "show")
    assert (row["whose"], row["left"], row["held"], row["gateways"]) == ("everybody", 5, 3, 1)


@pytest.mark.parametrize(
    "args",
    [
        ["set", "tenant", "default"],
        ["set", "tenant", "nobody", "--limit", "concurrent=4"],
        ["set", "key", "nobody", "--limit", "concurrent=4"],
        ["set", "tenant", "default", "--limit", "concurent=4"],
        ["set", "tenant", "default", "--limit", "concurrent=-4"],
        ["set", "tenant", "default", "--limit", "burst=4"],
        ["set", "planet", "default", "--limit", "concurrent=4"],
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, args: list[str]) -> None:
    assert main(["limits", *args, "--home", str(tmp_path)]) == 2
