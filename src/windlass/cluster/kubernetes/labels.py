"""Names and labels of all objects that Windlass makes in a cluster.

Labels identify our objects; an annotation holds the requested group, so any later client can read it from the
cluster itself.
"""

from __future__ import annotations

from typing import Any

from windlass.cluster.backend import Group

Manifest = dict[str, Any]

MANAGER = "windlass"
"""Our name as a field manager, and the value of app.kubernetes.io/managed-by."""
TENANT = "windlass/tenant"
GROUP = "windlass/group"
WANTED = "windlass/wanted"
"""Annotation: the group, as cluster.backend.group_bytes writes it."""
PREFIX = "windlass-"
WORKER = "windlass-worker"
LAUNCHER = "windlass-launcher"

INDEX_KEY = "batch.kubernetes.io/job-completion-index"
"""Annotation and label that the Job controller gives to a pod."""
ORDINAL_KEY = "apps.kubernetes.io/pod-index"
"""Label that the StatefulSet controller gives to a pod, from 1.28 on."""


LAUNCH_KEY = "batch.kubernetes.io/controller-uid"
"""Label that the Job controller gives to a pod: the Job's own uid."""
LAUNCH = "WINDLASS_LAUNCH"
"""Environment of a member: which launch of its group it belongs to."""


def namespace_of(tenant: str) -> str:
    """Return the namespace that belongs to a tenant."""
    return f"{PREFIX}{tenant}"


def tenant_labels(tenant: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "windlass",
        "app.kubernetes.io/managed-by": MANAGER,
        TENANT: tenant,
    }


def group_labels(group: Group, part: str = "group") -> dict[str, str]:
    return {
        **tenant_labels(group.tenant),
        "app.kubernetes.io/instance": group.name,
        "app.kubernetes.io/component": part,
        GROUP: group.name,
    }


def selector(group: Group) -> dict[str, str]:
    """Return the labels that all pods of a group have, and no other pod."""
    return {TENANT: group.tenant, GROUP: group.name}


def service_name(group: Group) -> str:
    """Return the name of a group's Service: a DNS label of RFC 1035, which begins with a letter."""
    return group.name if group.name[0].isalpha() else f"g{group.name}"


def is_ours(manifest: Manifest) -> bool:
    """Whether Windlass made an object; other objects are never changed."""
    labels = manifest.get("metadata", {}).get("labels") or {}
    return bool(labels.get("app.kubernetes.io/managed-by") == MANAGER)
