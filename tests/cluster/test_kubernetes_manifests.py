"""What is rendered fits the published schemas of every supported version, and the rules of the API."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from windlass.cluster.backend import Group, Restart
from windlass.cluster.kubernetes.cronjob import BackupCron, backup
from windlass.cluster.kubernetes.pod import PodSetting, literal
from windlass.cluster.kubernetes.render import claims, service, training
from windlass.cluster.kubernetes.rules import against_rules, pod_of
from windlass.cluster.kubernetes.schemas import against_schemas, known_versions
from windlass.cluster.kubernetes.tenancy import Egress, NamespaceQuota, priority_classes, tenancy
from windlass.cluster.kubernetes.training import dependents, workload
from windlass.cluster.kubernetes.yaml_io import from_files, to_yaml
from windlass.cluster.training_group import TenantJob, training_group
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.read import parse

CLUSTER: dict[str, Any] = {
    "nodes": 2,
    "cores": 2,
    "memory": "4GiB",
    "gpus": 1,
    "image": "registry.example/windlass:1",
    "priority": 20,
    "restarts": 7,
    "env": {"LEVEL": "1e3", "NOTE": "$(HOME) yes", "ANSWER": "no"},
    "secrets": {"AWS_SECRET_ACCESS_KEY": "store/key", "WINDLASS_STATE": "state/url"},
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "effect": "NoExecute", "seconds": 60}],
    "volumes": [
        {"mount": "/windlass", "claim": "home", "size": "100GiB", "storage_class": "nfs.fast"},
        {"mount": "/data", "claim": "corpora", "read_only": True},
        {"mount": "/fast", "scratch": "10GiB"},
    ],
}
ROOT = Path(__file__).parents[2]


def job(**cluster: Any) -> Job:
    told = {
        "name": "poems",
        "layout": {"dp": 4},
        "serve": {"scale": {"min_replicas": 2, "max_replicas": 6}},
        "cluster": {**CLUSTER, **cluster},
    }
    return parse(Job, told, "job.toml")


def everything() -> list[dict[str, Any]]:
    asked = TenantJob(job(), "acme")
    return [
        *priority_classes(),
        *tenancy("acme", NamespaceQuota(64, 256 << 30, 8, 100), (Egress("10.0.0.0/8", 9000),)),
        *claims(asked),
        *training(asked),
        *service(asked),
        backup(BackupCron("s3://bucket/backups", "acme", asked.cluster)),
    ]


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    pod = pod_of(manifest)
    assert pod is not None
    return dict(pod["spec"]["containers"][0])


def of_kind(kind: str, manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return next(each for each in manifests if each["kind"] == kind)


def test_several_versions_are_checked() -> None:
    versions = known_versions()
    assert versions[0] == "1.29"
    assert len(versions) >= 9


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_everything_fits_the_schemas(version: str) -> None:
    assert against_schemas(everything(), [version]) == []


@pytest.mark.slow
def test_everything_fits_the_schemas_of_every_version() -> None:
    assert against_schemas(everything(), known_versions()) == []


def test_a_misspelt_field_is_found() -> None:
    manifests = everything()
    of_kind("Job", manifests)["spec"]["template"]["spec"]["containers"][0]["envv"] = []
    found = against_schemas(manifests, ["1.37"])
    assert len(found) == 1
    assert "envv" in found[0]


def test_everything_keeps_the_rules() -> None:
    assert against_rules(everything()) == []


@pytest.mark.parametrize("restart", [Restart("always"), Restart("never"), Restart(max_restarts=3)])
@pytest.mark.parametrize("count", [0, 1, 12])
@pytest.mark.parametrize("port", [None, 8000])
def test_groups_keep_the_rules_whatever_they_ask_for(restart: Restart, count: int, port: int | None) -> None:
    group = Group("2nd", "m", count=count, restart=restart, placement="pack", image="i", port=port)
    manifests = [*dependents(group, PodSetting()), workload(group, PodSetting())]
    assert against_rules(manifests) == []
    assert against_schemas(manifests, ["1.37"]) == []


def test_callers_reach_a_group_at_its_port_and_nowhere_else() -> None:
    group = Group("g", "m", restart=Restart("always"), image="i", port=8000)
    _, policy, front = dependents(group, PodSetting())
    assert front["metadata"]["name"] == "g-http"
    assert front["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]
    peers, callers = policy["spec"]["ingress"]
    assert "ports" not in peers
    assert callers == {"ports": [{"protocol": "TCP", "port": "http"}]}
    member = container(workload(group, PodSetting()))
    assert {each["name"]: each["containerPort"] for each in member["ports"]}["http"] == 8000
    assert member["readinessProbe"]["tcpSocket"] == {"port": "http"}


def test_what_is_stored_as_a_secret_never_has_a_value() -> None:
    told = json.dumps(everything())
    assert '"secretKeyRef": {"name": "store", "key": "key"}' in told
    for manifest in everything():
        if pod_of(manifest) is not None:
            secret = [e for e in container(manifest)["env"] if e["name"] == "AWS_SECRET_ACCESS_KEY"]
            assert all("value" not in each for each in secret)


def test_a_pod_gets_what_the_job_file_says() -> None:
    made = of_kind("Job", everything())
    spec, inner = made["spec"]["template"]["spec"], container(made)
    assert made["metadata"]["namespace"] == "windlass-acme"
    assert made["spec"]["backoffLimitPerIndex"] == 7
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (2, 2)
    assert inner["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    ]
    assert spec["priorityClassName"] == "windlass-high"
    assert {"name": "volume-1", "mountPath": "/data", "readOnly": True} in inner["volumeMounts"]


def test_values_reach_the_process_as_they_were_written() -> None:
    env = {e["name"]: e.get("value") for e in container(of_kind("Job", everything()))["env"]}
    assert env["NOTE"] == literal("$(HOME) yes") == "$$(HOME) yes"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_other_readers_of_yaml_read_the_same(tmp_path: Path) -> None:
    """kubectl's own reader (Go) takes bare words differently than Python's."""
    (tmp_path / "all.yaml").write_text(to_yaml(everything()))
    (tmp_path / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    (tmp_path / "read.yaml").write_text(done.stdout)

    def keyed(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]): each for each in manifests}

    assert keyed(from_files(tmp_path / "read.yaml")) == keyed(everything())


def test_members_have_names_in_dns() -> None:
    manifests = training(TenantJob(job()))
    assert of_kind("Service", manifests)["metadata"]["name"] == "poems"
    assert of_kind("Job", manifests)["spec"]["template"]["spec"]["subdomain"] == "poems"


def test_a_job_that_does_not_say_how_gets_a_worker_on_every_machine() -> None:
    whole = job().model_copy(update={"layout": Layout()})
    group = training_group(TenantJob(whole))
    assert (group.count, group.args[group.args.index("--workers") + 1]) == (2, "2")
    assert '"dp" = 2' in group.environment["WINDLASS_JOB"]
    with pytest.raises(BadJob, match="cannot share equally"):
        training_group(TenantJob(whole.model_copy(update={"layout": Layout(dp=3)})))


def test_a_name_that_no_service_may_have_is_mended() -> None:
    made = dependents(Group("2nd", "m", image="i"), PodSetting())[0]
    assert made["metadata"]["name"] == "g2nd"


def test_a_run_without_a_shared_home_is_refused() -> None:
    with pytest.raises(BadJob, match="a home on a volume"):
        training(TenantJob(job(volumes=[{"mount": "/fast", "scratch": "1GiB"}])))


def test_a_run_without_an_image_is_refused() -> None:
    with pytest.raises(BadInput, match="needs a container image"):
        training(TenantJob(job(image=None)))


def test_a_home_of_a_stated_size_is_made_where_all_who_need_it_can_write() -> None:
    (claim,) = claims(TenantJob(job(), "acme"))
    assert claim["metadata"]["name"] == "home"
    assert claim["metadata"]["namespace"] == "windlass-acme"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "100Gi"}},
        "storageClassName": "nfs.fast",
    }
    home = {"mount": "/windlass", "claim": "home", "size": "1GiB"}
    (alone,) = claims(TenantJob(job(nodes=1, secrets={}, volumes=[home])))
    assert alone["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "storageClassName" not in alone["spec"]


@pytest.mark.parametrize("wrong", [{"host": "/data", "size": "1GiB"}, {"claim": "c", "storage_class": "s"}])
def test_a_size_is_for_claims_and_a_class_for_those_that_are_made(wrong: dict[str, str]) -> None:
    with pytest.raises(BadJob, match="goes with"):
        job(volumes=[{"mount": "/windlass", **wrong}])


def test_directories_of_nodes_are_for_namespaces_of_your_own() -> None:
    host = [{"mount": "/windlass", "host": "/srv/windlass"}]
    with pytest.raises(BadInput, match="directories of the node"):
        training(TenantJob(job(volumes=host)))
    made = of_kind("Job", training(TenantJob(job(volumes=host, namespace="mine"))))
    assert made["metadata"]["namespace"] == "mine"
    assert made["spec"]["template"]["spec"]["volumes"][2]["hostPath"]["path"] == "/srv/windlass"


def test_several_pods_need_a_common_state() -> None:
    with pytest.raises(BadJob, match="share their keys"):
        service(TenantJob(job(secrets={})))


def test_an_autoscaled_service_does_not_say_how_many_it_is() -> None:
    manifests = service(TenantJob(job()))
    assert "replicas" not in of_kind("Deployment", manifests)["spec"]
    assert of_kind("HorizontalPodAutoscaler", manifests)["spec"]["minReplicas"] == 2


def test_a_tenant_cannot_raise_its_own_rights() -> None:
    role = of_kind("Role", tenancy("acme", NamespaceQuota()))
    resources = {name for rule in role["rules"] for name in rule["resources"]}
    assert resources.isdisjoint({"secrets", "roles", "rolebindings", "resourcequotas", "serviceaccounts"})


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_control_plane_is_built_and_keeps_the_rules(tmp_path: Path) -> None:
    command = ["kubectl", "kustomize", str(ROOT / "deploy" / "control")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (tmp_path / "control.yaml").write_text(done.stdout)
    manifests = from_files(tmp_path / "control.yaml")
    assert {m["kind"] for m in manifests} >= {"Deployment", "Service", "NetworkPolicy", "ServiceAccount"}
    assert {m["metadata"].get("namespace") for m in manifests} == {"windlass-system", None}
    assert against_schemas(manifests, ["1.29", "1.37"]) == []
    assert against_rules(manifests) == []
