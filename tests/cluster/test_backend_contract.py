"""What every cluster promises (windlass.cluster.backend), for every backend that runs here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fake_backend import FakeBackend, FakeCluster
from windlass.cluster.backend import ClusterBackend, Group, GroupStatus, Resources, Restart
from windlass.cluster.local.local_backend import LocalBackend
from windlass.spec.errors import BadInput, InUse, NotFound

MEMBER = "made_up_member"
PATIENCE_S = 60.0
QUICK = Restart(back_off_s=0.05, max_back_off_s=5.0)
BACKENDS = [
    "fake",
    pytest.param("local", marks=pytest.mark.slow),
    pytest.param("ray", marks=pytest.mark.slow),
    pytest.param("kubernetes", marks=pytest.mark.slow),
]


@dataclass
class Cluster:
    """A cluster under test: `connect` makes a backend anew, as another caller would."""

    connect: Callable[[], ClusterBackend]
    tenant: str
    environment: dict[str, str]

    @property
    def backend(self) -> ClusterBackend:
        return self.connect()

    def group(self, name: str, *args: str, **more: Any) -> Group:
        return Group(
            name,
            MEMBER,
            args or ("sleep",),
            tenant=self.tenant,
            environment=self.environment,
            **{"restart": QUICK, "grace_s": 1.0, **more},
        )

    def until(self, key: str, holds: Callable[[GroupStatus], bool]) -> GroupStatus:
        """Look until it holds; the last that was seen explains a failure."""
        end, standing = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < end:
            standing = self.backend.observe(key)
            if standing is not None and holds(standing):
                return standing
            time.sleep(0.02)
        raise AssertionError(f"{key} never came to it: {standing}")

    def until_gone(self, key: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while (standing := self.backend.observe(key)) is not None:
            assert time.monotonic() < end, f"{key} does not go: {standing}"
            time.sleep(0.02)

    def clear(self) -> None:
        for standing in self.backend.survey(self.tenant).groups:
            self.backend.stop(standing.group.key)
        for standing in self.backend.survey(self.tenant).groups:
            self.until_gone(standing.group.key)


@pytest.fixture(params=BACKENDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    import windlass

    here = f"{Path(__file__).parent}:{Path(windlass.__file__).parents[1]}"
    monkeypatch.setenv("PYTHONPATH", here)
    if request.param == "fake":
        table = FakeCluster()
        connect: Callable[[], ClusterBackend] = lambda: FakeBackend(table)  # noqa: E731
    elif request.param == "local":
        connect = lambda: LocalBackend(tmp_path / "cluster")  # noqa: E731
    elif request.param == "ray":
        address = request.getfixturevalue("ray_nodes").address
        connect = lambda: on_ray(address)  # noqa: E731
    else:
        backend = request.getfixturevalue("kubernetes_backend")
        connect = lambda: backend  # noqa: E731
    tenant = "t" + "".join(c for c in request.node.name.lower() if c.isalnum())[-40:]
    made = Cluster(connect, tenant, {"PYTHONPATH": here})
    try:
        yield made
    finally:
        made.clear()


def on_ray(address: str) -> ClusterBackend:
    from windlass.cluster.on_ray.ray_backend import RayBackend

    return RayBackend(address)


def running(count: int) -> Callable[[GroupStatus], bool]:
    return lambda standing: standing.running == count == len(standing.members)


def test_a_group_runs_and_says_where(cluster: Cluster) -> None:
    group = cluster.group("g", count=2)
    cluster.backend.launch(group)
    standing = cluster.until(group.key, running(2))
    assert standing.group == group
    assert [member.index for member in standing.members] == [0, 1]
    assert all(member.node and member.since_s > 0 and not member.reason for member in standing.members)


def test_to_launch_again_changes_nothing(cluster: Cluster) -> None:
    group = cluster.group("g")
    cluster.backend.launch(group)
    before = cluster.until(group.key, running(1))
    cluster.backend.launch(group)
    cluster.backend.launch(group)
    assert cluster.backend.observe(group.key) == before


def test_another_group_of_the_same_key_is_refused(cluster: Cluster) -> None:
    group = cluster.group("g")
    cluster.backend.launch(group)
    with pytest.raises(InUse, match="with a different specification"):
        cluster.backend.launch(replace(group, args=("exit", "0")))
    assert cluster.until(group.key, running(1)).group == group


def test_a_group_is_gone_after_stop_and_stop_may_be_repeated(cluster: Cluster) -> None:
    group = cluster.group("g", count=2)
    cluster.backend.launch(group)
    cluster.until(group.key, running(2))
    cluster.backend.stop(group.key)
    cluster.backend.stop(group.key)
    cluster.until_gone(group.key)
    cluster.backend.stop(group.key)
    assert cluster.backend.observe(group.key) is None


def test_a_group_may_be_launched_again_once_it_is_gone(cluster: Cluster) -> None:
    group = cluster.group("g")
    cluster.backend.launch(group)
    cluster.backend.stop(group.key)
    cluster.until_gone(group.key)
    cluster.backend.launch(replace(group, args=("exit", "0")))
    assert cluster.until(group.key, lambda s: s.over).members[0].state == "done"


def test_an_unknown_group_is_not_there(cluster: Cluster) -> None:
    assert cluster.backend.observe(f"{cluster.tenant}/nobody") is None
    cluster.backend.stop(f"{cluster.tenant}/nobody")
    with pytest.raises(NotFound):
        cluster.backend.scale(f"{cluster.tenant}/nobody", 2)


def test_a_member_that_ends_well_is_done(cluster: Cluster) -> None:
    group = cluster.group("g", "exit", "0", count=2)
    cluster.backend.launch(group)
    standing = cluster.until(group.key, lambda s: s.over)
    assert [(m.state, m.exit_code, m.restarts) for m in standing.members] == [("done", 0, 0)] * 2


def test_a_member_that_fails_is_started_again_until_it_runs(cluster: Cluster, tmp_path: Path) -> None:
    group = cluster.group("g", "fail", "2", str(tmp_path))
    cluster.backend.launch(group)
    member = cluster.until(group.key, running(1)).members[0]
    while member.restarts < 2:  # it runs for a moment before it fails
        member = cluster.until(group.key, lambda s: s.members[0].state == "running").members[0]
    assert member.restarts == 2


def test_a_member_that_fails_too_often_stays_failed(cluster: Cluster) -> None:
    group = cluster.group("g", "exit", "1", restart=replace(QUICK, max_restarts=2))
    cluster.backend.launch(group)
    member = cluster.until(group.key, lambda s: s.over).members[0]
    assert (member.state, member.exit_code, member.restarts) == ("failed", 1, 2)
    assert "ended with code 1, for the 3rd time" in member.reason


def test_a_member_with_a_usage_error_is_not_restarted(cluster: Cluster) -> None:
    group = cluster.group("g", "exit", "2")
    cluster.backend.launch(group)
    member = cluster.until(group.key, lambda s: s.over).members[0]
    assert (member.state, member.exit_code, member.restarts) == ("failed", 2, 0)


def test_nothing_is_started_again_where_that_is_not_wanted(cluster: Cluster) -> None:
    group = cluster.group("g", "exit", "1", restart=Restart("never"))
    cluster.backend.launch(group)
    member = cluster.until(group.key, lambda s: s.over).members[0]
    assert (member.state, member.restarts) == ("failed", 0)


def test_a_group_grows_and_shrinks_and_leaves_the_others_alone(cluster: Cluster) -> None:
    group = cluster.group("g")
    cluster.backend.launch(group)
    first = cluster.until(group.key, running(1)).members[0]
    cluster.backend.scale(group.key, 3)
    cluster.backend.scale(group.key, 3)
    assert cluster.until(group.key, running(3)).members[0] == first
    cluster.backend.launch(replace(group, count=2))
    standing = cluster.until(group.key, running(2))
    assert standing.members[0] == first
    assert standing.group.count == 2


def test_a_gang_without_room_waits_whole_and_says_why(cluster: Cluster) -> None:
    free = max(node.free.cores or 0.0 for node in cluster.backend.survey().nodes)
    group = cluster.group("g", count=2, resources=Resources(cores=free * 0.75 + 1000))
    cluster.backend.launch(group)
    standing = cluster.until(group.key, lambda s: any("cores" in m.reason for m in s.members))
    assert [member.state for member in standing.members] == ["pending", "pending"]


def test_a_survey_shows_machines_and_the_groups_of_one_tenant(cluster: Cluster) -> None:
    group = cluster.group("g")
    cluster.backend.launch(group)
    cluster.until(group.key, running(1))
    survey = cluster.backend.survey(cluster.tenant)
    assert any(node.alive and node.total.cores for node in survey.nodes)
    assert [standing.group.key for standing in survey.groups] == [group.key]
    assert cluster.backend.survey("nobody").groups == ()


@pytest.mark.parametrize(
    "wrong",
    [{"name": "Not a label"}, {"tenant": "../up"}, {"module": "os; rm"}, {"count": -1}, {"name": "x" * 60}],
    ids=["name", "tenant", "module", "count", "long"],
)
def test_what_no_cluster_can_run_is_refused(cluster: Cluster, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        cluster.backend.launch(replace(cluster.group("g"), **wrong))


def test_members_know_who_they_are(cluster: Cluster, tmp_path: Path) -> None:
    if isinstance(cluster.backend, FakeBackend):
        pytest.skip("a fake starts nothing")
    import json

    group = cluster.group("g", "tell", str(tmp_path / "told"), count=2)
    group = replace(group, environment={**group.environment, "COLOUR": "green"})
    cluster.backend.launch(group)
    cluster.until(group.key, lambda s: all((tmp_path / f"told-{i}").exists() for i in range(2)))
    told = [json.loads((tmp_path / f"told-{i}").read_text())["env"] for i in range(2)]
    assert [env["WINDLASS_INDEX"] for env in told] == ["0", "1"]
    assert {(env["WINDLASS_GROUP"], env["COLOUR"]) for env in told} == {(group.key, "green")}
    assert all(env["WINDLASS_HOST"].count(".") == 3 for env in told)


def test_who_does_not_listen_is_ended_by_force(cluster: Cluster) -> None:
    group = cluster.group("g", "deaf" if not isinstance(cluster.backend, FakeBackend) else "sleep")
    cluster.backend.launch(group)
    cluster.until(group.key, running(1))
    cluster.backend.stop(group.key)
    cluster.until_gone(group.key)
