"""The client says what an API server said. Against a double of its REST behaviour, not a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.kubernetes_double import ADMIN, LAUNCHER, Table, serving
from windlass.cluster.kubernetes import api as module
from windlass.cluster.kubernetes.api import Expired, KubernetesApi
from windlass.cluster.kubernetes.kubeconfig import ClusterAccess
from windlass.spec.errors import AskedWrongly, BadInput, InUse, ProcessFailed


@pytest.fixture
def table() -> Table:
    made = Table()
    made.create("namespaces", {"apiVersion": "v1", "metadata": {"name": "n"}})
    return made


@pytest.fixture
def url(table: Table) -> Iterator[str]:
    with serving(table) as url:
        yield url


@pytest.fixture
def api(url: str) -> Iterator[KubernetesApi]:
    made = KubernetesApi(ClusterAccess(url, token=ADMIN))
    yield made
    made.close()


def config(name: str = "c", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "labels": {"colour": data.get("colour", "red")}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_what_is_applied_can_be_read_and_applied_again(api: KubernetesApi) -> None:
    first = api.apply(config(a="1"))
    again = api.apply(config(a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    found = api.get("ConfigMap", "n", "c")
    assert found is not None
    assert found["data"] == {"a": "1"}


def test_what_is_no_longer_applied_is_gone_and_what_others_set_stays(
    api: KubernetesApi, table: Table
) -> None:
    api.apply(config(a="1", b="2"))
    table.objects["configmaps", "n", "c"]["data"]["theirs"] = "3"
    assert api.apply(config(a="1"))["data"] == {"a": "1", "theirs": "3"}


def test_what_is_not_there_is_none(api: KubernetesApi) -> None:
    assert api.get("ConfigMap", "n", "nobody") is None
    assert api.delete("ConfigMap", "n", "nobody") is False


def test_what_is_there_is_not_created_again(api: KubernetesApi) -> None:
    api.create(config())
    with pytest.raises(InUse, match="already exists"):
        api.create(config())


def test_a_missing_namespace_is_reported_with_what_makes_one(api: KubernetesApi) -> None:
    with pytest.raises(BadInput, match='namespaces "gone" not found') as caught:
        api.create({**config(), "metadata": {"name": "c", "namespace": "gone"}})
    assert "render --tenant" in str(caught.value.hint)


def test_a_misspelt_field_is_refused_by_the_server(api: KubernetesApi) -> None:
    with pytest.raises(BadInput, match="dataa"):
        api.apply({**config(), "dataa": {}})


def test_another_object_of_the_same_name_is_not_deleted(api: KubernetesApi) -> None:
    api.create(config())
    with pytest.raises(InUse, match="precondition"):
        api.delete("ConfigMap", "n", "c", uid="another")


def test_lists_come_in_pages(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for name in "abcde":
        api.create(config(name, colour="red" if name != "c" else "blue"))
    found, version = api.list("ConfigMap", "n", {"colour": "red"})
    assert [each["metadata"]["name"] for each in found] == ["a", "b", "d", "e"]
    assert int(version) > 0


def test_a_watch_reports_what_happens_after_the_list(api: KubernetesApi) -> None:
    api.create(config("before"))
    _, version = api.list("ConfigMap", "n")
    api.create(config("a"))
    api.apply(config("a", x="1"))
    api.delete("ConfigMap", "n", "a")
    told = []
    for what, each in api.watch("ConfigMap", "n", version, quiet_s=1):
        told.append((what, each["metadata"]["name"]))
    assert told[:2] == [("ADDED", "a"), ("MODIFIED", "a")]


def test_a_watch_from_a_forgotten_event_is_reported(api: KubernetesApi, table: Table) -> None:
    _, version = api.list("ConfigMap", "n")
    table.forget()
    with pytest.raises(Expired):
        list(api.watch("ConfigMap", "n", version, quiet_s=1))


def test_a_key_without_the_scope_learns_what_is_needed(url: str) -> None:
    with pytest.raises(AskedWrongly, match="denied access"):
        KubernetesApi(ClusterAccess(url, token="wrong")).get("Job", "n", "j")
    with pytest.raises(AskedWrongly, match="cannot patch"):
        KubernetesApi(ClusterAccess(url, token=LAUNCHER)).apply(config())


def test_a_server_that_is_away_is_reported_by_its_address() -> None:
    with pytest.raises(ProcessFailed, match=r"127\.0\.0\.1:1 does not answer"):
        KubernetesApi(ClusterAccess("http://127.0.0.1:1")).get("Job", "n", "j")
