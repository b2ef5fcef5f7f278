"""`windlass control`: keys are made, listed and dropped; a wrong combination is refused."""

import json
from pathlib import Path

import pytest

from windlass.cli.main import main
from windlass.control.api.control_keys import ControlKeys


def said(capsys: pytest.CaptureFixture[str], home: Path, *argv: str) -> str:
    assert main(["control", *argv, "--home", str(home)]) == 0
    return capsys.readouterr().out


def test_a_new_key_is_shown_once_and_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = said(capsys, tmp_path, "--new-key", "page", "--read-only").rsplit(" ", 1)[-1].strip()
    key = ControlKeys(tmp_path).find(token)
    assert key is not None
    assert (key.name, key.scopes) == ("page", ("read",))
    assert token not in said(capsys, tmp_path, "--list-keys", "--json")


def test_keys_are_listed_and_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = json.loads(said(capsys, tmp_path, "--new-key", "ada", "--json"))["key"]
    assert said(capsys, tmp_path, "--list-keys").splitlines()[1].split() == [
        "ada",
        "read",
        "and",
        "write",
        "all",
    ]
    said(capsys, tmp_path, "--drop-key", "ada")
    assert ControlKeys(tmp_path).find(token) is None


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--read-only"], "--read-only needs --new-key"),
        (["--new-key", "No Name"], "is not a valid name"),
        (["--new-key", "ada"], "exists already"),
        (["--drop-key", "adda"], "did you mean 'ada'"),
        (["--port", "70000"], "ports go from 0 to 65535"),
    ],
)
def test_what_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    said(capsys, tmp_path, "--new-key", "ada")
    assert main(["control", *argv, "--home", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err


def test_a_list_of_keys_that_is_none_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "keys.json").write_text("[]")
    assert main(["control", "--list-keys", "--home", str(tmp_path)]) == 1
    assert "is not a list of keys" in capsys.readouterr().err
