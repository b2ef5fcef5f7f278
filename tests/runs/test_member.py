"""A member of a run in a cluster: what was noted in the home decides what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.elastic.agent import Agent, AgentSite
from windlass.registry.versions import Registry
from windlass.runs import member
from windlass.runs.member import LAUNCHES, launch_name, main
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.run import RESULT
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this launch keeps its notes."""
    variables = {
        "WINDLASS_HOME": str(tmp_path),
        "WINDLASS_GROUP": "t/g",
        "WINDLASS_LAUNCH": "u",
        "WINDLASS_HOST": "h",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / LAUNCHES / launch_name()
    folder.mkdir(parents=True)
    return folder


def test_a_member_of_a_run_that_is_over_ends_well_at_once(note: Path) -> None:
    (note / "over.json").write_text("{}")
    assert main(["--workers", "1"]) == 0


def test_another_launch_of_the_same_group_is_another(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = launch_name()
    monkeypatch.setenv("WINDLASS_LAUNCH", "v")
    assert launch_name() != before


def test_member_0_needs_a_job(note: Path) -> None:
    with pytest.raises(BadInput, match="WINDLASS_JOB is not set"):
        main(["--workers", "1"])


def test_the_others_wait_for_member_0_and_not_for_ever(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_INDEX", "1")
    with pytest.raises(ProcessFailed, match="member 0 did not prepare a run"):
        main(["--patience", "0"])


def test_the_others_attend_the_run_that_member_0_noted(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_INDEX", "2")
    (note / "run.json").write_text(json.dumps("/windlass/runs/g/1"))
    seen: list[tuple[Path, int]] = []
    monkeypatch.setattr(member, "attend", lambda folder, _note, _line, index: seen.append((folder, index)))
    main([])
    assert seen == [(Path("/windlass/runs/g/1"), 2)]


def test_a_member_gives_the_run_a_moment_before_it_leaves(tmp_path: Path) -> None:
    site = AgentSite(tmp_path, "node1", "127.0.0.1")
    patient, alone = Agent(site, print, leave_after_s=3600.0), Agent(site, print, leaves=True)
    assert not alone.left
    for agent in (patient, alone):
        agent._interrupt()
    assert (patient.left, alone.left) == (False, True)


def test_a_note_of_its_own_is_found_by_whichever_launch(note: Path, tmp_path: Path) -> None:
    own = tmp_path / LAUNCHES / "poems-abc"
    own.mkdir()
    (own / "over.json").write_text("{}")
    assert main(["--workers", "1", "--note", "poems-abc"]) == 0


def test_a_run_that_finished_before_it_was_noted_is_registered_once_and_not_trained_again(
    note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tmp_path / "runs" / "poems" / "1" / RESULT
    writer = DirectoryWriter(StoreDir(result))
    writer.write("weights", b"numbers")
    writer.commit({})
    monkeypatch.setenv("WINDLASS_JOB", 'name = "poems"\n')
    monkeypatch.setattr(member, "relaid", lambda folder, _job: folder)
    for _ in range(2):
        (note / "run.json").write_text(json.dumps(str(result.parent)))
        (note / "over.json").unlink(missing_ok=True)
        assert main(["--workers", "1"]) == 0
        assert (note / "over.json").exists()
    assert len(Registry(tmp_path).versions("poems")) == 1
