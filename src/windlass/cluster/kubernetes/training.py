"""A group in Kubernetes.

Members that finish are indices of an indexed Job: each index is restarted by itself (backoffLimitPerIndex),
and a pod that the cluster evicted does not count as a failure. Members that must always run are replicas of a
StatefulSet. Either way member I has the DNS name NAME-I.SERVICE even before it is ready, because ranks must
connect first.

All other objects of a group are owned by the Job or StatefulSet, so deleting it removes everything.
"""

from __future__ import annotations

from typing import Any

from windlass.cluster.backend import INDEX, Group, check, group_bytes
from windlass.cluster.kubernetes.labels import (
    INDEX_KEY,
    LAUNCH,
    LAUNCH_KEY,
    ORDINAL_KEY,
    WANTED,
    Manifest,
    group_labels,
    selector,
    service_name,
)
from windlass.cluster.kubernetes.pod import CALLS, CONTAINER, PORT, PodSetting, callers, front, pod_template
from windlass.spec.errors import AskedWrongly, BadInput

JOB_FIELDS = {INDEX: f"metadata.annotations['{INDEX_KEY}']", LAUNCH: f"metadata.labels['{LAUNCH_KEY}']"}
SET_FIELDS = {INDEX: f"metadata.labels['{ORDINAL_KEY}']"}
MAX_MEMBERS = 10_000
"""Maximum parallelism of an indexed Job with limits per index (batch/v1)."""


def workload(group: Group, setting: PodSetting, *, suspended: bool = False) -> Manifest:
    """Return the object that owns all others of a group."""
    check(group)
    if group.count > MAX_MEMBERS:
        raise BadInput(f"group {group.key}: {group.count} members are more than {MAX_MEMBERS}")
    if group.restart.policy == "always":
        return stateful_set(group, setting)
    return indexed_job(group, setting, suspended=suspended)


def indexed_job(group: Group, setting: PodSetting, *, suspended: bool = False) -> Manifest:
    """Return the Job of a group whose members finish.

    A group of 0 members is a suspended Job of one: a Job of none would be complete at once, for ever.
    """
    count = max(1, group.count)
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": 0 if group.restart.policy == "never" else group.restart.max_restarts,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _rules()},
        "suspend": suspended or group.count == 0,
        "template": pod_template(group, setting, group_labels(group), JOB_FIELDS, "Never"),
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(group, setting), "spec": spec}


def _rules() -> list[Manifest]:
    """Return the failure rules; the first match decides: evicted, invalid input, else counted."""
    taken = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = {"containerName": CONTAINER, "operator": "In", "values": [AskedWrongly.exit_code]}
    return [taken, {"action": "FailIndex", "onExitCodes": codes}]


def stateful_set(group: Group, setting: PodSetting) -> Manifest:
    """Return the StatefulSet of a group whose members must always run."""
    template = pod_template(group, setting, group_labels(group), SET_FIELDS, "Always")
    del template["spec"]["subdomain"]  # its controller sets it
    spec: dict[str, Any] = {
        "serviceName": service_name(group),
        "replicas": group.count,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(group)},
        "template": template,
    }
    metadata = _metadata(group, setting)
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


def dependents(group: Group, setting: PodSetting) -> list[Manifest]:
    """Return what a group needs in addition to its pods."""
    called = [] if group.port is None else [front_service(group, setting)]
    return [headless_service(group, setting), group_policy(group, setting), *called]


def headless_service(group: Group, setting: PodSetting) -> Manifest:
    """Return the Service that gives every member a DNS name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_metadata(group, setting, wanted=False), "name": service_name(group)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(group),
            "ports": [{"name": "meet", "port": PORT, "targetPort": "meet", "protocol": "TCP"}],
        },
    }


def front_service(group: Group, setting: PodSetting) -> Manifest:
    """Return the Service for clients outside the group."""
    metadata = {**_metadata(group, setting, wanted=False), "name": f"{service_name(group)}-{CALLS}"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": front(selector(group))}


def group_policy(group: Group, setting: PodSetting) -> Manifest:
    """Let members of one group connect to each other, at any port: ranks choose theirs at the rendezvous.

    Clients from outside reach only the group's own port, if it has one.
    """
    peers = [{"podSelector": {"matchLabels": selector(group)}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(group, setting, wanted=False),
        "spec": {
            "podSelector": {"matchLabels": selector(group)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers}, *([callers()] if group.port else [])],
            "egress": [{"to": peers}],
        },
    }


def owned(manifest: Manifest, owner: Manifest) -> Manifest:
    """Return a manifest that is deleted with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _metadata(group: Group, setting: PodSetting, *, wanted: bool = True) -> Manifest:
    metadata: Manifest = {
        "name": group.name,
        "namespace": setting.of(group.tenant),
        "labels": group_labels(group),
    }
    if wanted:
        metadata["annotations"] = {WANTED: group_bytes(group).decode()}
    return metadata
