"""A service in Kubernetes: pods behind one Service, scaled by load.

Each pod is a complete `windlass serve` with one engine. Keys and limits must be the same in all of them, so
more than one pod needs a PostgreSQL state, whose URL comes from a secret as $WINDLASS_STATE.

A pod that ends is first removed from the Service (`preStop` waits until all nodes know), then finishes its
requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windlass.cluster.backend import Resources
from windlass.cluster.kubernetes import pod
from windlass.cluster.kubernetes.labels import GROUP, TENANT, Manifest, tenant_labels
from windlass.cluster.kubernetes.pod import DEFAULT, PodSetting
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadJob
from windlass.spec.processes import CLI
from windlass.spec.serve import Serve

STATE = "WINDLASS_STATE"
LEAVE_S = 5
"""For all nodes to learn that a pod gets no more requests."""
DRAIN_S = 60
LOAD_S = 600
"""Maximum time to load a model."""
FILES = "/etc/windlass"
JOB_FILE = "job.toml"


@dataclass(frozen=True)
class KubernetesService:
    """The model to serve, and where."""

    name: str
    tenant: str
    model: str
    serve: Serve
    cluster: Cluster
    job_text: str
    """The job file, which pods read [serve] from."""
    setting: PodSetting = DEFAULT

    @property
    def labels(self) -> dict[str, str]:
        """Labels that all its pods have, and no other pod."""
        return {TENANT: self.tenant, GROUP: self.name}

    @property
    def replicas(self) -> tuple[int, int]:
        """Minimum and maximum number of pods."""
        scale = self.serve.scale
        if scale is None:
            return self.serve.replicas, self.serve.replicas
        min_pods = max(1, scale.min_replicas)
        return min_pods, max(min_pods, scale.max_replicas or max(min_pods, self.serve.replicas))

    @property
    def shared(self) -> bool:
        """Whether several pods may run at the same time."""
        return STATE in self.cluster.secrets


def serving(service: KubernetesService) -> list[Manifest]:
    """Return everything that a service needs in its namespace."""
    min_pods, max_pods = service.replicas
    if max_pods > 1 and not service.shared:
        raise BadJob(
            f"[serve] needs up to {max_pods} pods, which must share their keys and limits",
            hint=f"the URL of a PostgreSQL database in a secret: [cluster.secrets] {STATE} = 'NAME/KEY'",
        )
    manifests = [config(service), deployment(service), front(service), policy(service)]
    if max_pods > min_pods:
        manifests.append(autoscaler(service))
    if max_pods > 1:
        manifests.append(disruption_budget(service))
    return manifests


def config(service: KubernetesService) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(service),
        "data": {JOB_FILE: service.job_text},
    }


def deployment(service: KubernetesService) -> Manifest:
    """Return the Deployment; with an autoscaler it has no replicas, because each would undo the other."""
    min_pods, max_pods = service.replicas
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spec: dict[str, Any] = {
        **({"replicas": min_pods} if max_pods == min_pods else {}),
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": LOAD_S + 60,
        "strategy": rolling if service.shared else {"type": "Recreate"},
        "selector": {"matchLabels": service.labels},
        "template": {"metadata": {"labels": _labels(service)}, "spec": _pod(service)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(service), "spec": spec}


def _pod(service: KubernetesService) -> Manifest:
    cluster, setting = service.cluster, service.setting
    wanted = Resources(cluster.cores, cluster.memory, cluster.gpus)
    volumes = [pod.volume(number, each, setting) for number, each in enumerate(cluster.volumes)]
    job = {"name": "job", "configMap": {"name": service.name}}
    return {
        "serviceAccountName": setting.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": LEAVE_S + DRAIN_S,
        "securityContext": pod.pod_security(),
        "containers": [_container(service, wanted)],
        "volumes": [*pod.scratch_volumes(wanted), job, *volumes],
        **_placed(service),
    }


def _placed(service: KubernetesService) -> Manifest:
    cluster = service.cluster
    spec: Manifest = pod.spread(service.labels)
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        spec["tolerations"] = [pod.toleration(each) for each in cluster.tolerations]
    if name := pod.priority_class(cluster.priority):
        spec["priorityClassName"] = name
    return spec


def _container(service: KubernetesService, wanted: Resources) -> Manifest:
    cluster, port = service.cluster, service.serve.port
    args = ["serve", service.model, "--job", f"{FILES}/{JOB_FILE}", "--host", "0.0.0.0", "--port", str(port)]
    return {
        "name": "serve",
        "image": pod.image_of(cluster.image, "the service"),
        "command": ["python", "-m", CLI],
        "args": [pod.literal(arg) for arg in (*args, "--replicas", "1")],
        "env": pod.environment(cluster.env, cluster.secrets),
        "ports": [pod.port(pod.CALLS, port)],
        "resources": pod.resources(wanted),
        "securityContext": pod.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *pod.scratch_mounts(),
            {"name": "job", "mountPath": FILES, "readOnly": True},
            *pod.mounts(cluster.volumes),
        ],
        "startupProbe": _probe(service, "/readyz", every=5, times=LOAD_S // 5),
        "readinessProbe": _probe(service, "/readyz", every=5, times=2),
        "livenessProbe": _probe(service, "/healthz", every=10, times=6),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
    }


def _probe(service: KubernetesService, path: str, *, every: int, times: int) -> Manifest:
    scheme = "HTTPS" if service.serve.tls_certificate is not None else "HTTP"
    get = {"path": path, "port": pod.CALLS, "scheme": scheme}
    return {"httpGet": get, "periodSeconds": every, "timeoutSeconds": 5, "failureThreshold": times}


def front(service: KubernetesService) -> Manifest:
    spec = pod.front(service.labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(service), "spec": spec}


def policy(service: KubernetesService) -> Manifest:
    """Admit all clients to the port: API keys decide who may call."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(service),
        "spec": {
            "podSelector": {"matchLabels": service.labels},
            "policyTypes": ["Ingress"],
            "ingress": [pod.callers()],
        },
    }


def autoscaler(service: KubernetesService) -> Manifest:
    min_pods, max_pods = service.replicas
    scale = service.serve.scale
    assert scale is not None
    if service.cluster.cores is None:
        raise BadJob(
            "[serve.scale] on Kubernetes scales by CPU utilisation, which needs [cluster] cores",
            hint="set the cores of each pod: [cluster] cores = 4",
        )
    target = {"type": "Utilization", "averageUtilization": round(100 * scale.load)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(service),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
            "minReplicas": min_pods,
            "maxReplicas": max_pods,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": min(3600, round(scale.calm))}},
        },
    }


def disruption_budget(service: KubernetesService) -> Manifest:
    """Let nodes be drained one pod at a time; minAvailable could forbid it for ever."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(service),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": service.labels},
        },
    }


def _metadata(service: KubernetesService) -> Manifest:
    namespace = service.setting.of(service.tenant)
    return {"name": service.name, "namespace": namespace, "labels": _labels(service)}


def _labels(service: KubernetesService) -> dict[str, str]:
    return {
        **tenant_labels(service.tenant),
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": "service",
        GROUP: service.name,
    }
