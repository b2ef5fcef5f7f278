"""`windlass sites replicate|show|rollout` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.registry.versions import Registry
from windlass.sites.replication.artifact_store import open_depot
from windlass.sites.rollout.rollout_record import SitesRolloutRecord, SiteState, load, save
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

SITES = """
zone = "llm.example.org"
[replicate]
depot = "{depot}"
[rollout]
wait = "100ms"
[[site]]
name = "east"
addresses = ["192.0.2.1"]
url = "http://127.0.0.1:1"
[[site]]
name = "west"
addresses = ["192.0.2.2"]
url = "http://127.0.0.1:1"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sites, and a home with one promoted version."""
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    writer = DirectoryWriter(StoreDir(tmp_path / "made"))
    writer.write("config.json", b"{}")
    writer.commit({"kind": "test"})
    for _ in range(2):
        Registry(tmp_path / "home").register("poems", tmp_path / "made")
    Registry(tmp_path / "home").promote("poems@1")
    path = tmp_path / "sites.toml"
    path.write_text(SITES.format(depot=tmp_path / "depot"))
    return path


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_home_publishes_sites_bring_and_show_says_who_has_what(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sites", "replicate", str(file), "--json"]) == 0
    assert said(capsys)["published"] == ["poems@1", "poems@2"]
    east = ["sites", "replicate", str(file), "--site", "east", "--home", str(tmp_path / "east"), "--json"]
    assert main(east) == 0
    assert sorted(said(capsys)["brought"]) == ["poems@1", "poems@2"]
    assert main(["sites", "show", str(file), "--json"]) == 0
    east_row, west_row = said(capsys)["copies"]
    assert (east_row["has"], east_row["missing"], east_row["behind_s"]) == (["poems@1", "poems@2"], [], None)
    assert (west_row["has"], west_row["missing"]) == ([], ["poems@1", "poems@2"])
    assert main(["sites", "show", str(file)]) == 0
    assert "never" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replicate", "--site", "eats"], "has no site 'eats'"),
        (["replicate", "--site", "east"], "there is no depot yet"),
        (["replicate", "--rate", "much"], "rate"),
        (["rollout", "poems@1"], "there is no depot yet"),
    ],
)
def test_a_usage_error_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["sites", words[0], str(file), *words[1:]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["poems"], "names no version"),
        (["poems@7"], "the depot has no poems@7"),
        ([], "no version given"),
        (["nobody", "--status"], "never rolled out"),
        (["nobody", "--give-up"], "never rolled out"),
        (["poems@2", "--at-once", "0"], "at_once"),
    ],
)
def test_a_roll_out_of_nothing_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    main(["sites", "replicate", str(file)])
    assert main(["sites", "rollout", str(file), *words]) == 2
    assert message in capsys.readouterr().err


def test_sites_without_an_artifact_store_are_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text().replace("[replicate]", "#").replace("depot =", "#"))
    assert main(["sites", "replicate", str(file)]) == 2
    assert "have no [replicate]" in capsys.readouterr().err


def test_one_site_alone_is_not_rolled_out_over_sites(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["sites", "replicate", str(file)])
    file.write_text(file.read_text()[: file.read_text().rindex("[[site]]")])
    assert main(["sites", "rollout", str(file), "poems@2"]) == 2
    assert "only one site" in capsys.readouterr().err


def test_sites_that_do_not_answer_stop_a_roll_out_and_nothing_is_touched(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["sites", "replicate", str(file)])
    for site in ("east", "west"):
        main(["sites", "replicate", str(file), "--site", site, "--home", str(tmp_path / site)])
    capsys.readouterr()
    assert main(["sites", "rollout", str(file), "poems@2", "--dry-run", "--json"]) == 0
    rows = said(capsys)["sites"]
    assert [(row["copy"], row["well"]) for row in rows] == [(True, False)] * 2
    assert main(["sites", "rollout", str(file), "poems@2", "--json"]) == 1
    told = said(capsys)
    assert (told["state"], told["sites"]["west"]["phase"]) == ("stopped", "waiting")
    assert "no other site is healthy" in told["reason"]
    assert main(["sites", "rollout", str(file), "poems@1"]) == 2  # another is on its way
    assert "poems@2 is being rolled out" in capsys.readouterr().err
    assert main(["sites", "rollout", str(file), "poems", "--give-up", "--json"]) == 0
    assert said(capsys)["state"] == "failed"


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    depot = open_depot(str(tmp_path / "depot"), create=True)
    turn = SiteState("undoing", 3.0, "poems@1", ("ro-1",), ("ro-1", "ro-2"), 1.0, 1, 2.0, "why")
    record = SitesRolloutRecord(
        "poems@2", ("east",), 1.0, 2.0, failing="east", sites={"east": turn}, known={"a": "b"}
    )
    save(depot, record)
    assert load(depot, "poems") == record
