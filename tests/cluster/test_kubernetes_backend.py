"""What the Kubernetes backend promises beyond the contract: few rights, nothing dropped, nothing left behind.

Against a double of the API server; no Kubernetes can run here.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.kubernetes_double import ADMIN, CONTROL, LAUNCHER, Table, cluster_rules, serving
from windlass.cluster.backend import Group, Restart
from windlass.cluster.kubernetes import follow
from windlass.cluster.kubernetes.api import KubernetesApi
from windlass.cluster.kubernetes.follow import GroupWatch
from windlass.cluster.kubernetes.kubeconfig import ClusterAccess
from windlass.cluster.kubernetes.kubernetes_backend import KubernetesBackend
from windlass.cluster.kubernetes.tenancy import NamespaceQuota, priority_classes, tenancy
from windlass.spec.errors import BadInput, InUse, WindlassError

pytestmark = pytest.mark.slow

GROUP = Group("g", "m", ("a",), count=3, tenant="acme", image="windlass:test", secrets={"KEY": "store/key"})


class Cut(Exception):
    """The launcher dies here."""


class Mortal(KubernetesApi):
    """A client whose owner dies after so many requests that change something."""

    lives = sys.maxsize

    def _request(self, method: str, path: str, **more: Any) -> Any:
        told = super()._request(method, path, **more)
        if method != "GET":
            self.lives -= 1
            if self.lives == 0:
                raise Cut
        return told


@pytest.fixture(scope="module")
def set_up() -> Table:
    """A cluster in which an administrator has set the tenant up."""
    table = Table()
    with serving(table) as url:
        admin = KubernetesApi(ClusterAccess(url, token=ADMIN))
        for manifest in (*priority_classes(), *tenancy("acme", NamespaceQuota(cores=8))):
            admin.apply(manifest)
        admin.close()
    return table


@pytest.fixture
def table(set_up: Table) -> Table:
    table = Table()
    table.objects = copy.deepcopy(set_up.objects)
    return table


@pytest.fixture
def url(table: Table) -> Iterator[str]:
    with serving(table) as url:
        yield url


def backend(url: str, token: str = LAUNCHER) -> KubernetesBackend:
    return KubernetesBackend(Mortal(ClusterAccess(url, token=token)))


def job(table: Table) -> dict[str, Any]:
    return table.objects["jobs", "windlass-acme", "g"]


def test_the_role_of_a_tenant_is_enough_and_no_more(url: str, table: Table) -> None:
    table.asked.clear()
    made = backend(url)
    made.launch(GROUP)
    made.scale(GROUP.key, 2)
    standing = made.observe(GROUP.key)
    assert standing is not None
    made.stop(GROUP.key)
    assert {(verb, what) for verb, what in table.asked if verb in ("create", "patch", "delete")} == {
        ("create", "jobs"), ("patch", "jobs"), ("patch", "services"), ("patch", "networkpolicies"),
        ("delete", "jobs"),
    }  # fmt: skip


def test_another_tenant_is_out_of_reach(url: str) -> None:
    with pytest.raises(WindlassError, match="not found"):
        backend(url).launch(replace(GROUP, tenant="other"))


def test_pods_start_only_when_all_that_they_need_is_there(url: str, table: Table) -> None:
    made = backend(url)
    made.api.lives = 1  # type: ignore[attr-defined]
    with pytest.raises(Cut):
        made.launch(GROUP)
    assert job(table)["spec"]["suspend"] is True
    backend(url).launch(GROUP)
    assert job(table)["spec"]["suspend"] is False
    assert ("services", "windlass-acme", "g") in table.objects


@pytest.mark.parametrize("lives", range(1, 5))
def test_a_launch_that_was_cut_anywhere_comes_to_the_same_end(url: str, table: Table, lives: int) -> None:
    def shape() -> list[tuple[Any, Any]]:
        return sorted((key, o.get("spec")) for key, o in table.objects.items() if key[2] == "g")

    backend(url).launch(GROUP)
    whole = str(shape())
    for key in [key for key in table.objects if key[2] == "g"]:
        del table.objects[key]
    table.applied.clear()
    made = backend(url)
    made.api.lives = lives  # type: ignore[attr-defined]
    with pytest.raises(Cut):
        made.launch(GROUP)
    backend(url).launch(GROUP)
    assert str(shape()) == whole


def test_everything_is_owned_by_the_job(url: str, table: Table) -> None:
    backend(url).launch(GROUP)
    for plural in ("services", "networkpolicies"):
        owners = table.objects[plural, "windlass-acme", "g"]["metadata"]["ownerReferences"]
        assert [each["uid"] for each in owners] == [job(table)["metadata"]["uid"]]


@pytest.mark.parametrize(
    "path",
    [("spec", "backoffLimitPerIndex"), ("spec", "podReplacementPolicy"), ("spec", "podFailurePolicy")],
)
def test_a_server_that_drops_a_restart_rule_is_not_trusted(
    url: str, table: Table, path: tuple[str, ...]
) -> None:
    table.dropped.append(path)
    with pytest.raises(BadInput, match=rf"{path[-1]} was dropped"):
        backend(url).launch(GROUP)
    assert job(table)["spec"]["suspend"] is True, "and no pod was started"


def test_completions_and_parallelism_change_together(url: str, table: Table) -> None:
    made = backend(url)
    made.launch(GROUP)
    made.scale(GROUP.key, 5)
    spec = job(table)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["suspend"]) == (5, 5, False)
    made.scale(GROUP.key, 0)
    assert job(table)["spec"]["suspend"] is True
    standing = made.observe(GROUP.key)
    assert standing is not None
    assert (standing.group.count, standing.members) == (0, ())
    made.scale(GROUP.key, 2)
    spec = job(table)["spec"]
    assert (spec["completions"], spec["suspend"]) == (2, False)


def test_a_job_that_is_over_cannot_grow(url: str, table: Table) -> None:
    made = backend(url)
    made.launch(GROUP)
    job(table)["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    with pytest.raises(BadInput, match="has finished"):
        made.scale(GROUP.key, 4)


def test_another_users_job_is_left_alone(url: str, table: Table) -> None:
    backend(url).launch(GROUP)
    job(table)["metadata"]["labels"].clear()
    for act in (lambda: backend(url).launch(GROUP), lambda: backend(url).stop(GROUP.key)):
        with pytest.raises(InUse, match="not made by Windlass"):
            act()
    assert not job(table)["metadata"].get("deletionTimestamp")


def test_members_that_always_run_are_a_stateful_set(url: str, table: Table) -> None:
    made = backend(url)
    made.launch(replace(GROUP, restart=Restart("always")))
    made.scale(GROUP.key, 4)
    assert table.objects["statefulsets", "windlass-acme", "g"]["spec"]["replicas"] == 4
    assert ("jobs", "windlass-acme", "g") not in table.objects


def test_pods_that_are_not_even_there_say_why(url: str, table: Table) -> None:
    made = backend(url)
    made.launch(GROUP)
    _event(table, "Job", "g", "FailedCreate", 'pods "g-0" is forbidden: exceeded quota: windlass-quota')
    standing = made.observe(GROUP.key)
    assert standing is not None
    assert all("the tenant's quota is used up" in member.reason for member in standing.members)


def test_warnings_are_reported_as_they_come_and_none_twice(url: str, table: Table) -> None:
    made = backend(url)
    made.launch(GROUP)
    following = GroupWatch(made.api, "windlass-acme", GROUP)
    try:
        _event(table, "Pod", "g-0-x", "FailedScheduling", "0/1 nodes: 1 Insufficient memory.")
        _event(table, "Pod", "other", "FailedScheduling", "of another group")
        told = following.next(10)
        assert told is not None
        assert told.text == "pod g-0-x: no node has room for it (0/1 nodes: 1 too little free memory.)"
        table.forget()  # the watch has to begin anew, and lists what it has told already
        _event(table, "Pod", "g-1-y", "Evicted", "")
        told = following.next(10)
        assert told is not None
        assert told.text == "pod g-1-y: its node ran out of room, and sent it away"
        assert following.next(0.3) is None
    finally:
        following.close()


def _event(table: Table, kind: str, name: str, reason: str, message: str) -> None:
    told = {"type": "Warning", "reason": reason, "message": message}
    metadata = {"name": f"{name}.{len(table.objects)}", "namespace": "windlass-acme"}
    about = {"kind": kind, "name": name}
    table.create("events", {"apiVersion": "v1", "metadata": metadata, **told, "involvedObject": about})


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_follows_ends_quietly_when_the_connection_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "WATCH_S", 1.0)
    made = backend(url)
    made.launch(GROUP)
    following = GroupWatch(made.api, "windlass-acme", GROUP)
    assert following.next(0.3) is None
    following.close()
    made.api.close()
    for watcher in following.watchers:
        watcher.join(10)
        assert not watcher.is_alive()


def test_a_control_plane_sees_the_groups_of_all_tenants_with_the_rights_that_it_is_deployed_with(
    url: str,
) -> None:
    admin = KubernetesApi(ClusterAccess(url, token=ADMIN))
    for manifest in tenancy("other", NamespaceQuota()):
        admin.apply(manifest)
    control = backend(url, CONTROL)
    wanted = [GROUP, replace(GROUP, tenant="other")]
    for group in wanted:
        control.launch(group)
    seen = control.survey()
    assert [standing.group.key for standing in seen.groups] == ["acme/g", "other/g"]
    for group in wanted:
        control.stop(group.key)
    with pytest.raises(WindlassError, match="denied access"):
        backend(url, LAUNCHER).survey()


def test_the_account_of_the_control_plane_changes_nothing_in_the_whole_cluster() -> None:
    assert {verb for _, _, verbs in cluster_rules() for verb in verbs} == {"list"}
