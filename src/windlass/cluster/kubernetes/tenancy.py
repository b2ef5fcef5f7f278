"""Isolation of a tenant: its own namespace, quota, limits, network policies and rights.

An administrator applies these once. A launcher for the tenant then needs only the Role below, in that
namespace; the pods themselves have no rights at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.cluster.kubernetes.labels import LAUNCHER, WORKER, Manifest, namespace_of, tenant_labels
from windlass.cluster.kubernetes.pod import BANDS, GPU, bytes_text, cores_text

PRIORITIES = {"urgent": 100_000, "high": 10_000, "low": -10_000, "idle": -100_000}
"""Ordinary jobs have no class, and priority 0. System pods have two thousand million."""
CONTROL, CONTROL_NAMESPACE = "windlass-control", "windlass-system"
"""The control plane (deploy/control), which launches for every tenant."""
LEVEL = "restricted"
METADATA_SERVICE = "169.254.169.254/32"
"""Where cloud machines give their own credentials to any process."""
NODE_DNS = "169.254.20.10/32"
"""NodeLocal DNSCache answers there instead of kube-dns."""
HTTPS = 443


@dataclass(frozen=True)
class NamespaceQuota:
    """Limits of all pods of a tenant together; None: no limit."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    pods: int | None = None
    jobs: int | None = None
    storage_bytes: int | None = None
    """Of all its persistent volume claims."""


@dataclass(frozen=True)
class Egress:
    """An address range outside the cluster that pods may call: a CIDR block and a port."""

    block: str = "0.0.0.0/0"
    port: int = HTTPS


OUTSIDE = (Egress(),)


def tenancy(tenant: str, quota: NamespaceQuota, egress: Sequence[Egress] = OUTSIDE) -> list[Manifest]:
    """Return everything that a tenant needs before its first job."""
    return [
        namespace(tenant),
        resource_quota(tenant, quota),
        limit_range(tenant),
        *network(tenant, egress),
        *rights(tenant),
    ]


def namespace(tenant: str) -> Manifest:
    security = {
        f"pod-security.kubernetes.io/{mode}{suffix}": value
        for mode in ("enforce", "audit", "warn")
        for suffix, value in (("", LEVEL), ("-version", "latest"))
    }
    labels = {**tenant_labels(tenant), **security}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace_of(tenant), "labels": labels},
    }


def resource_quota(tenant: str, quota: NamespaceQuota) -> Manifest:
    hard: dict[str, str] = {"services.loadbalancers": "0", "services.nodeports": "0"}
    if quota.cores is not None:
        hard |= {"requests.cpu": cores_text(quota.cores), "limits.cpu": cores_text(quota.cores)}
    if quota.memory_bytes is not None:
        text = bytes_text(quota.memory_bytes)
        hard |= {"requests.memory": text, "limits.memory": text}
    if quota.gpus is not None:
        hard[f"requests.{GPU}"] = str(quota.gpus)
    if quota.pods is not None:
        hard["pods"] = str(quota.pods)
    if quota.jobs is not None:
        hard["count/jobs.batch"] = str(quota.jobs)
    if quota.storage_bytes is not None:
        hard["requests.storage"] = bytes_text(quota.storage_bytes)
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": _metadata(tenant, "windlass-quota"),
        "spec": {"hard": hard},
    }


def limit_range(tenant: str) -> Manifest:
    """Give containers without requests small defaults; a quota refuses pods without any."""
    container = {
        "type": "Container",
        "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
        "default": {"cpu": "1", "memory": "2Gi"},
        "min": {"cpu": "10m", "memory": "16Mi"},
    }
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": _metadata(tenant, "windlass-limits"),
        "spec": {"limits": [container]},
    }


def network(tenant: str, egress: Sequence[Egress]) -> list[Manifest]:
    """Deny all; then allow DNS and the stores. Groups add their own peers."""
    deny = _policy(tenant, "windlass-deny", {"policyTypes": ["Ingress", "Egress"]})
    names = _policy(tenant, "windlass-names", {"policyTypes": ["Egress"], "egress": [_dns()]})
    rules = [_outside(each) for each in egress]
    stores = _policy(tenant, "windlass-stores", {"policyTypes": ["Egress"], "egress": rules})
    return [deny, names, stores] if rules else [deny, names]


def _dns() -> Manifest:
    kube_dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {"to": [kube_dns, {"ipBlock": {"cidr": NODE_DNS}}], "ports": ports}


def _outside(egress: Egress) -> Manifest:
    block: Manifest = {"cidr": egress.block}
    if egress.block == "0.0.0.0/0":
        block["except"] = [METADATA_SERVICE]
    return {"to": [{"ipBlock": block}], "ports": [{"protocol": "TCP", "port": egress.port}]}


def _policy(tenant: str, name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(tenant, name),
        "spec": {"podSelector": {}, **spec},
    }


RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("batch", ("jobs",), ("get", "list", "create", "patch", "delete")),
    ("apps", ("statefulsets",), ("get", "list", "create", "patch", "delete")),
    ("", ("services",), ("get", "create", "patch")),
    ("networking.k8s.io", ("networkpolicies",), ("get", "create", "patch")),
    ("", ("pods",), ("get", "list", "watch")),
    ("", ("pods/log",), ("get",)),
    ("", ("events",), ("list", "watch")),
)
"""The rights to launch, watch and stop: API group, resources, verbs. A server-side apply is a patch, and a
create when the object does not exist."""


def rights(tenant: str) -> list[Manifest]:
    """Return an account without rights for the pods, and one with few rights for the launcher."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _metadata(tenant, LAUNCHER),
        "rules": [
            {"apiGroups": [group], "resources": list(names), "verbs": list(verbs)}
            for group, names, verbs in RULES
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(tenant, LAUNCHER),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": LAUNCHER},
        "subjects": [
            {"kind": "ServiceAccount", "name": LAUNCHER, "namespace": namespace_of(tenant)},
            {"kind": "ServiceAccount", "name": CONTROL, "namespace": CONTROL_NAMESPACE},
        ],
    }
    return [_account(tenant, WORKER), _account(tenant, LAUNCHER), role, binding]


def _account(tenant: str, name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(tenant, name),
        "automountServiceAccountToken": False,
    }


def priority_classes() -> list[Manifest]:
    """Return the priority classes, which all tenants of a cluster share."""
    assert {name for _, name in BANDS if name} == PRIORITIES.keys()
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {
                "name": f"windlass-{name}",
                "labels": {"app.kubernetes.io/name": "windlass", "app.kubernetes.io/managed-by": "windlass"},
            },
            "value": value,
            "preemptionPolicy": "PreemptLowerPriority" if value > 0 else "Never",
            "description": f"Windlass: {name} work",
        }
        for name, value in PRIORITIES.items()
    ]


def _metadata(tenant: str, name: str) -> Manifest:
    return {"name": name, "namespace": namespace_of(tenant), "labels": tenant_labels(tenant)}
