"""One member of a group as a pod.

A pod gets no rights: no token, no capabilities, no root, a read-only root file system. That is the
"restricted" Pod Security Standard, which tenants' namespaces enforce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.cluster.backend import GROUP as GROUP_VARIABLE
from windlass.cluster.backend import HOST, Group, Resources
from windlass.cluster.kubernetes.labels import WORKER, Manifest, namespace_of, selector, service_name
from windlass.spec.cluster import Cluster, Toleration, VolumeSpec
from windlass.spec.errors import BadInput

CONTAINER = "member"
PORT = 29400
"""The rendezvous port of members (`windlass train --rendezvous`)."""
CALLS = "http"
"""The name of the port for clients."""
USER = 10001
"""The user of the image in deploy/: neither root nor a user of the nodes."""
SCRATCH = "/scratch"
SHARED_MEMORY = 1 << 30
GPU = "nvidia.com/gpu"
ADDRESS = "status.podIP"
BANDS = ((50, "urgent"), (1, "high"), (0, ""), (-49, "low"), (-100, "idle"))


@dataclass(frozen=True)
class PodSetting:
    """Settings of pods that a group does not have itself."""

    namespace: str | None = None
    """A namespace of the user, with the user's rules; default: that of the tenant."""
    service_account: str = WORKER
    image: str | None = None
    """For groups without an image."""

    def of(self, tenant: str) -> str:
        return self.namespace or namespace_of(tenant)


DEFAULT = PodSetting()


def setting_of(cluster: Cluster) -> PodSetting:
    """Return the pod settings of the [cluster] table of a job file."""
    return PodSetting(cluster.namespace, cluster.service_account or WORKER, cluster.image)


def pod_template(
    group: Group, setting: PodSetting, labels: Mapping[str, str], fields: Mapping[str, str], restart: str
) -> Manifest:
    """Return the pod template of a group; `fields` are variables with values from fields of the pod."""
    spec: dict[str, Any] = {
        "serviceAccountName": setting.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "restartPolicy": restart,
        "subdomain": service_name(group),
        "terminationGracePeriodSeconds": max(1, math.ceil(group.grace_s)),
        "securityContext": pod_security(),
        "containers": [_container(group, setting, fields)],
        "volumes": [*scratch_volumes(group.resources), *_volumes(group, setting)],
        **placed(group, selector(group)),
    }
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _container(group: Group, setting: PodSetting, fields: Mapping[str, str]) -> Manifest:
    return {
        "name": CONTAINER,
        "image": image_of(group.image or setting.image, f"group {group.key}"),
        "command": ["python", "-m", group.module],
        "args": [literal(arg) for arg in group.args],
        "env": [
            *environment(group.environment, group.secrets),
            {"name": GROUP_VARIABLE, "value": group.key},
            *(field_variable(name, path) for name, path in {HOST: ADDRESS, **fields}.items()),
        ],
        "ports": [port("meet", PORT), *([port(CALLS, group.port)] if group.port else [])],
        **({"readinessProbe": {"tcpSocket": {"port": CALLS}, "periodSeconds": 5}} if group.port else {}),
        "resources": resources(group.resources),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*scratch_mounts(), *mounts(group.volumes)],
    }


def port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def front(labels: Mapping[str, str]) -> Manifest:
    """Return the spec of the Service for clients of the pods with these labels."""
    ports = [{"name": CALLS, "port": 80, "targetPort": CALLS, "protocol": "TCP"}]
    return {"type": "ClusterIP", "selector": dict(labels), "ports": ports}


def callers() -> Manifest:
    """Return the rule of a network policy that admits all clients: API keys decide who may call."""
    return {"ports": [{"protocol": "TCP", "port": CALLS}]}


def image_of(image: str | None, who: str) -> str:
    if not image:
        raise BadInput(
            f"{who} needs a container image to run on Kubernetes",
            hint='[cluster] image = "registry.example/windlass:1.0"; deploy/ has the recipe of one',
        )
    return image


def literal(text: str) -> str:
    """Escape `$` as `$$`, so that Kubernetes does not expand $(NAME) in an argument or a value."""
    return text.replace("$", "$$")


def environment(values: Mapping[str, str], secrets: Mapping[str, str]) -> list[Manifest]:
    """Return the variables of a container: plain values, and secrets by reference."""
    own = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "PYTHONUNBUFFERED": "1", **values}
    plain = [{"name": name, "value": literal(value)} for name, value in own.items()]
    return plain + [_secret(name, *place.split("/", 1)) for name, place in secrets.items()]


def _secret(name: str, secret: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def field_variable(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def resources(wanted: Resources) -> Manifest:
    """Return equal requests and limits, so that neighbours cannot take resources away."""
    amounts: dict[str, str] = {}
    if wanted.cores is not None:
        amounts["cpu"] = cores_text(wanted.cores)
    if wanted.memory_bytes is not None:
        amounts["memory"] = bytes_text(wanted.memory_bytes)
    if wanted.gpus:
        amounts[GPU] = str(wanted.gpus)
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def cores_text(cores: float) -> str:
    thousandths = max(1, round(cores * 1000))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def bytes_text(size: int) -> str:
    for unit, scale in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


def pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def scratch_volumes(wanted: Resources) -> list[Manifest]:
    """Return the writable volumes: a scratch directory, and shared memory, which counts as memory."""
    shared = SHARED_MEMORY if wanted.memory_bytes is None else max(1 << 20, wanted.memory_bytes // 4)
    shared -= shared % (1 << 20)
    return [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": bytes_text(shared)}},
    ]


def scratch_mounts() -> list[Manifest]:
    return [{"name": "scratch", "mountPath": SCRATCH}, {"name": "shared-memory", "mountPath": "/dev/shm"}]


def _volumes(group: Group, setting: PodSetting) -> list[Manifest]:
    return [volume(number, each, setting) for number, each in enumerate(group.volumes)]


def volume(number: int, wanted: VolumeSpec, setting: PodSetting) -> Manifest:
    name = f"volume-{number}"
    if wanted.claim is not None:
        return {"name": name, "persistentVolumeClaim": {"claimName": wanted.claim}}
    if wanted.scratch is not None:
        return {"name": name, "emptyDir": {"sizeLimit": bytes_text(wanted.scratch)}}
    if setting.namespace is None:
        raise BadInput(
            f"volume at '{wanted.mount}': a tenant's pods may not use directories of the node ('host')",
            hint="use a claim, or name a [cluster] namespace of your own that allows hostPath",
        )
    return {"name": name, "hostPath": {"path": wanted.host, "type": "Directory"}}


def mounts(volumes: tuple[VolumeSpec, ...]) -> list[Manifest]:
    return [
        {
            "name": f"volume-{number}",
            "mountPath": each.mount,
            **({"readOnly": True} if each.read_only else {}),
        }
        for number, each in enumerate(volumes)
    ]


def placed(group: Group, labels: Mapping[str, str]) -> Manifest:
    """Return the placement fields of a pod spec."""
    spec: dict[str, Any] = dict(spread(labels) if group.placement == "spread" else packed(labels))
    if group.node_selector:
        spec["nodeSelector"] = dict(group.node_selector)
    if group.tolerations:
        spec["tolerations"] = [toleration(each) for each in group.tolerations]
    if name := priority_class(group.priority):
        spec["priorityClassName"] = name
    return spec


def spread(labels: Mapping[str, str]) -> Manifest:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }
    return {"topologySpreadConstraints": [constraint]}


def packed(labels: Mapping[str, str]) -> Manifest:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(labels)}}
    near = {"weight": 100, "podAffinityTerm": term}
    return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}}


def toleration(wanted: Toleration) -> Manifest:
    fields = {
        "key": wanted.key,
        "operator": wanted.operator,
        "value": wanted.value,
        "effect": wanted.effect,
        "tolerationSeconds": wanted.seconds,
    }
    return {key: value for key, value in fields.items() if value is not None}


def priority_class(priority: int) -> str:
    """Return the PriorityClass of a priority; none for 0, so that ordinary jobs need no class."""
    band = next((name for minimum, name in BANDS if priority >= minimum), "idle")
    return f"windlass-{band}" if band else ""
