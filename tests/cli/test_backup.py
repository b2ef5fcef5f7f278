"""`windlass backup` and `windlass restore`: what they print, what they refuse, and what they never show."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.registry.versions import Registry
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    for name in ("WINDLASS_STATE", "WINDLASS_BACKUP_KEY"):
        monkeypatch.delenv(name, raising=False)
    writer = DirectoryWriter(StoreDir(tmp_path / "made"))
    writer.write("weights", b"weights")
    writer.commit()
    Registry(home).register("poems", tmp_path / "made")
    return home


def facts(out: Out, *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(out.readouterr().out)


def test_a_home_is_backed_up_listed_verified_and_restored(capsys: Out, home: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "backup")
    assert main(["keys", "make", "ada"]) == 0
    capsys.readouterr()
    made = facts(capsys, "backup", "make", url)
    listed = facts(capsys, "backup", "list", url)
    assert [each["snapshot"] for each in listed["snapshots"]] == [made["snapshot"]]
    assert listed["stored"]["encrypted"] is False
    found = facts(capsys, "backup", "verify", url, "--no-ask")
    assert (found["models"], found["keys"], found["model"]) == (1, 1, None)
    shutil.rmtree(home)
    back = facts(capsys, "restore", url)
    assert back["snapshot"] == made["snapshot"]
    assert back["lost"]["known_s"] == pytest.approx(0, abs=5)
    assert Registry(home).names() == ["poems"]
    assert [key["name"] for key in facts(capsys, "keys", "list")] == ["ada"]


def test_what_people_read_says_the_same(capsys: Out, home: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "backup")
    for argv in (["backup", "make", url], ["backup", "list", url], ["backup", "verify", url, "--no-ask"]):
        assert main(argv) == 0
    told = capsys.readouterr().out
    assert "is intact: " in told
    assert main(["backup", "prune", url, "--last", "1"]) == 0
    assert "0 snapshots deleted, 1 kept" in capsys.readouterr().out
    assert main(["restore", url, "--to", str(tmp_path / "other")]) == 0
    assert "restored " in capsys.readouterr().out


def test_settings_may_be_kept_in_the_home(capsys: Out, home: Path, tmp_path: Path) -> None:
    (home / "backup.toml").write_text(f'url = "{tmp_path / "backup"}"\n[keep]\nlast = 1\n')
    first = facts(capsys, "backup", "make")
    facts(capsys, "backup", "make")
    assert facts(capsys, "backup", "prune", "--daily", "0", "--weekly", "0", "--monthly", "0")[
        "forgotten"
    ] == [first["snapshot"]]


def test_a_schedule_ends_after_so_many(capsys: Out, tmp_path: Path) -> None:
    figures = facts(capsys, "backup", "schedule", str(tmp_path / "b"), "--every", "50ms", "--times", "2")
    assert figures["made_total"] == 2


def test_a_key_is_never_shown(capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("hushhush-hushhush\n")
    url = str(tmp_path / "backup")
    assert main(["backup", "make", url, "--key-file", str(tmp_path / "key")]) == 0
    monkeypatch.setenv("WINDLASS_BACKUP_KEY", "hushhush-hushhush")  # the same secret, given otherwise
    assert main(["backup", "list", url, "--json"]) == 0
    monkeypatch.setenv("WINDLASS_BACKUP_KEY", "hushhush-but-another")
    assert main(["backup", "list", url]) == 2
    told = capsys.readouterr()
    assert "wrong key for this backup" in told.err
    assert "hushhush" not in told.out + told.err
    assert "hushhush" not in (tmp_path / "backup" / "backup.json").read_text()


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("backup make", 2, "no backup given"),
        ("backup list {tmp}/nothing", 2, "there is no backup"),
        ("backup make {home}/inside", 2, "inside the home"),
        ("backup make {tmp}/b --rate fast", 2, "rate"),
        ("backup make {tmp}/b --parallel 0", 2, "parallel"),
        ("backup make {tmp}/b --key-file {tmp}/none", 2, "cannot be read"),
        ("backup make {tmp}/b --passphrase", 2, "terminal"),
        ("backup make gopher://x", 2, "known: file, s3"),
        ("backup make {tmp}/b --home {tmp}/empty", 2, "nothing to back up"),
        ("backup prune {tmp}/b --last 0", 2, "no backup"),
        ("backup schedule {tmp}/b --every soon", 2, "not a duration"),
        ("backup schedule {tmp}/b --times 0", 2, "at least 1"),
        ("backup", 2, "WHAT"),
        ("restore {tmp}/nothing", 2, "there is no backup"),
    ],
)
def test_what_cannot_be_is_said(
    capsys: Out, home: Path, tmp_path: Path, line: str, code: int, reason: str
) -> None:
    assert main(line.format(tmp=tmp_path, home=home).split()) == code
    assert reason in capsys.readouterr().err


def test_a_wrong_key_in_the_settings_is_named(capsys: Out, home: Path) -> None:
    (home / "backup.toml").write_text('urll = "x"\n')
    assert main(["backup", "make"]) == 2
    assert "did you mean 'url'?" in capsys.readouterr().err
