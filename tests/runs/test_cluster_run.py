"""Following a run on a cluster, with a cluster that is nothing but a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fake_backend import FakeBackend, FakeCluster
from windlass.cluster.backend import Group, Resources
from windlass.runs.cluster_run import GroupFollower, resources_of
from windlass.runs.training import RunFolder
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.protocol.elastic import OVER

GROUP = Group("g", "windlass.elastic.agent_main", ("sleep",), count=2)


class Audience:
    """The follower of a run."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs" / "poems" / "1"
    (path / OVER).parent.mkdir(parents=True)
    return RunFolder(path)


def following(folder: RunFolder, group: Group, audience: Audience) -> tuple[GroupFollower, FakeBackend]:
    backend = FakeBackend(FakeCluster())
    backend.launch(group)
    return GroupFollower(backend, group, folder, audience.events.append, audience.said.append), backend


def end(folder: RunFolder, outcome: str, error: dict[str, Any] | None = None) -> None:
    (folder.path / OVER).write_text(json.dumps({"outcome": outcome, "error": error}))


def test_a_run_that_is_over_takes_its_group_with_it_and_all_is_reported(folder: RunFolder) -> None:
    audience = Audience()
    followed, backend = following(folder, GROUP, audience)
    (folder.path / "journal.jsonl").write_text('{"event": "finished", "step": 7}\n')
    end(folder, "finished")
    assert followed.run() is True
    assert audience.events == [{"event": "finished", "step": 7}]
    assert backend.observe(GROUP.key) is None


def test_a_reported_event_is_not_reported_again(folder: RunFolder) -> None:
    (folder.path / "journal.jsonl").write_text('{"event": "step", "step": 7}\n')
    audience = Audience()
    followed, _ = following(folder, GROUP, audience)
    end(folder, "stopped")
    assert followed.run() is False
    assert audience.events == []


def test_a_run_that_failed_says_why(folder: RunFolder) -> None:
    followed, _ = following(folder, GROUP, Audience())
    end(folder, "failed", {"kind": "BadInput", "message": "no such text", "hint": None})
    with pytest.raises(BadInput, match="no such text"):
        followed.run()


def test_a_group_that_fails_before_the_run_is_over_is_the_failure(folder: RunFolder) -> None:
    group = Group("g", "windlass.elastic.agent_main", ("exit", "2"))
    audience = Audience()
    followed, backend = following(folder, group, audience)
    with pytest.raises(ProcessFailed, match="part 0 of run poems/1 ended with code 2"):
        followed.run()
    assert backend.observe(group.key) is None
    assert "warning: part 0 is failed: ended with code 2" in audience.said


def test_a_machine_gets_room_for_its_part_of_the_workers() -> None:
    cluster = Cluster(nodes=3, cores=1.5, memory=1 << 30, gpus=1)
    assert resources_of(cluster, 7) == Resources(4.5, 3 << 30, 3)
    assert resources_of(Cluster(nodes=2), 7) == Resources()
